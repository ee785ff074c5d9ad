//! `pando cp` beside `cp -a`: what fails stops nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;

#[test]
fn what_cannot_be_copied_keeps_nothing_else_from_being_copied() {
    let b = mounted!();
    b.sh(
        "cd m; mkdir -p s/sub/x; echo f > s/x; echo g > s/y; echo g > s/z; echo h > s/sub/a; echo h > s/sub/z
        touch -d @5 s s/sub",
    );
    let pando = env!("CARGO_BIN_EXE_pando");
    for (number, line) in [
        "cp -a missing s/y TO",
        "cp -a s/y missing TO",
        "cp -a s/. TO",
        "cp -a s/x s/sub s/z TO",
        "cp -an s/. TO",
        "cp -an s/x s/y s/sub TO",
        "cp -aT s/x TO",
        "cp -anT s/x TO",
    ]
    .iter()
    .enumerate()
    {
        let mut codes = Vec::new();
        for (name, program) in [("cp", "cp"), ("pando", &format!("{pando} cp"))] {
            let to = format!("{name}{number}");
            let line = line.replace("cp -a", &format!("{program} -a")).replace("TO", &to);
            // A directory where a file is to go, and a file where a directory is to go.
            b.sh(&format!("cd m; mkdir -p {to}/x {to}/sub; echo old > {to}/sub/x; touch -d @9 {to}/sub {to}/sub/x {to}/x"));
            codes.push(b.sh(&format!("cd m; {line} 2> said && echo 0 || echo $?; touch -d @3 {to}")));
            if line.contains(" -an") {
                // Where cp gives a directory that was there the times of the source, and this leaves it alone.
                b.sh(&format!("touch -d @3 m/{to}/sub"));
            }
            let said = fs::read_to_string(b.path("m/said")).unwrap();
            assert_eq!(said.is_empty(), codes[0] == "0\n", "{line}: {said}");
        }
        assert_eq!(codes[0], codes[1], "{line}");
        crate::common::same(b.path(&format!("m/cp{number}")), b.path(&format!("m/pando{number}")));
    }
}

//! How pictures look: colours, fonts and hatches of the classes of elements.

/// What says that it is a picture.
pub const XMLNS: &str = "http://www.w3.org/2000/svg";
/// How messages of ranges are filled.
pub const HATCH: &str = concat!(
    r##"<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">"##,
    r##"<rect width="6" height="6" fill="#f6eefc"/><path d="M0 0V6" stroke="#e3d0f2" stroke-width="3"/></pattern>"##,
);

/// How the classes of elements look.
pub const STYLE: &str = "
text{font:11px 'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#24313f;white-space:pre}
.axis{fill:#8a97a5;font-size:10.5px}
.title{font-weight:bold;font-size:11px}
.range{font-weight:bold;fill:#1d4f8c}
.small,.legend,.note{fill:#55636f;font-size:10.5px}
.strong{font-weight:bold;fill:#a61b1b}
.map{fill:#9a5200;font-size:10.5px}
.chip{fill:#24313f}
.inner{fill:#f4f8fc;stroke:#4a6785;stroke-width:1.3}
.leaf{fill:#f1f8ef;stroke:#4d7f45;stroke-width:1.3}
.memory{fill:#fbfbfb;stroke:#888;stroke-width:1.3;stroke-dasharray:2 3}
.broken{fill:#fdecec;stroke:#a61b1b;stroke-width:2;stroke-dasharray:7 4}
.folded{fill:#fafafa;stroke:#888;stroke-width:1.3;stroke-dasharray:6 3}
.outer{fill:none;stroke:#4a6785;stroke-width:1.3}
.badge{fill:#fff;stroke:#4a6785;stroke-width:1}
.badgetext{font-size:10px;font-weight:bold}
.rule{stroke:#c8d4e0;stroke-width:1;fill:none}
.points{fill:#fff;stroke:#9aa9b8;stroke-width:1}
.delete{fill:#fff;stroke:#a61b1b;stroke-width:1;stroke-dasharray:1 2}
.goto{fill:url(#hatch);stroke:#7a3fa8;stroke-width:1.3;stroke-dasharray:5 3}
.edge-line{fill:none;stroke:#4a6785;stroke-width:1.5}
.edge-head{fill:#4a6785;stroke:#4a6785;stroke-width:1}
.edge-dot{fill:#4a6785}
.goto-line{fill:none;stroke:#7a3fa8;stroke-width:1.6;stroke-dasharray:6 4}
.goto-head{fill:none;stroke:#7a3fa8;stroke-width:1.6}
.goto-dot{fill:#fff;stroke:#7a3fa8;stroke-width:1.3}
";

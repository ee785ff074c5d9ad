//! `pando info`: prints what the superblock says about an image.
//!
//! Reads the superblock alone, so it is quick, needs no lock, and is the same whether the image is mounted or not.
//! Only the name of an image that was made before superblocks had it is looked for in the file system.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use pando_db::Identity;
use pando_fs::MountOptions;
use pando_fuse::mountinfo;
use serde::Serialize;

use crate::{
    exit::{self, Coded},
    image,
    report::VERSION,
    size::show,
    uuid,
};

const NANOS_OF_SECOND: u64 = 1_000_000_000;

/// Show label, UUID, sizes and state of an image, mounted or not
#[derive(clap::Args)]
#[command(
    after_help = "With --udev it prints what blkid -o udev would, for a udev rule (pando install has one): lsblk and
/dev/disk/by-label and by-uuid know the device then, and fstab may say LABEL= or UUID=. The exit
code is 2 if it is no image.

Examples: pando info grove.img
          pando info --json /mnt/grove"
)]
pub struct Args {
    /// Print JSON, with a version of its format
    #[arg(long, conflicts_with = "udev")]
    json: bool,
    /// Print variables for udev
    #[arg(long)]
    udev: bool,
    /// An image, or a directory where one is mounted
    #[arg(value_name = "IMAGE-or-DIR")]
    target: PathBuf,
}

#[derive(Serialize)]
struct Info {
    version: u32,
    image: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    image_hex: Option<String>,
    label: String,
    uuid: String,
    /// Bytes.
    size: u64,
    node_size: u64,
    log_size: u64,
    /// RFC 3339, in UTC.
    created: String,
    created_seconds: u64,
    /// `mounted`, `closed`, or `open`: in use elsewhere, or not closed in order.
    state: &'static str,
    mounted_on: Vec<String>,
    format: u32,
    incompatible_features: u64,
    compatible_features: u64,
}

pub fn run(args: &Args) -> Result<()> {
    let target = image::canonical(&args.target)?;
    let image = match target.is_dir() {
        false => target,
        true => match mountinfo::containing(&target)?.filter(|m| m.fstype == mountinfo::FSTYPE) {
            Some(mount) => mount.source,
            None => bail!("{}: not in a mounted Pando file system", args.target.display()),
        },
    };
    let identity = identify(&image)?;
    let mounts = mountinfo::of_image(&image)?;
    let mounted = !mounts.is_empty();
    let mut label = identity.label.clone();
    if label.is_empty() && identity.clean && !mounted && identity.merge == "pando-fs" {
        label = label_inside(&image).unwrap_or_default();
    }
    let info = Info {
        version: VERSION,
        image: image.display().to_string(),
        image_hex: super::hex_unless_text(&image),
        label,
        uuid: uuid::show(&identity.uuid),
        size: identity.size,
        node_size: identity.node_size.into(),
        log_size: identity.log_size,
        created: date(identity.created_nanos),
        created_seconds: identity.created_nanos / NANOS_OF_SECOND,
        state: match (mounted, identity.clean) {
            (true, _) => "mounted",
            (_, true) => "closed",
            (_, false) => "open",
        },
        mounted_on: mounts.iter().map(|m| m.dir.display().to_string()).collect(),
        format: identity.version,
        incompatible_features: identity.incompatible,
        compatible_features: identity.compatible,
    };
    if args.json {
        super::print_json(&info)
    } else if args.udev {
        super::print(&udev(&info))
    } else {
        super::print(&text(&info, &identity))
    }
}

/// What the superblock of `image` says. What is no image is wrong usage.
pub fn identify(image: &Path) -> Result<Identity> {
    pando_db::identify(image).map_err(|e| match e {
        pando_db::Error::Format(_) => Coded(exit::USAGE, format!("{}: {e}", image.display())).into(),
        e => anyhow::Error::from(e).context(format!("{}", image.display())),
    })
}

fn label_inside(image: &Path) -> Option<String> {
    let options = MountOptions::default().read_only(true).background(false);
    let fs = image::open(image, options).ok()?;
    let label = fs.label().to_owned();
    fs.close().ok()?;
    Some(label)
}

/// Nanoseconds since 1970 as a date and time of day, UTC.
fn date(nanos: u64) -> String {
    let second = i64::try_from(nanos / NANOS_OF_SECOND).unwrap_or(0);
    jiff::Timestamp::from_second(second).map_or_else(|_| second.to_string(), |time| time.to_string())
}

fn text(info: &Info, identity: &Identity) -> String {
    let state = match info.state {
        "mounted" => format!("mounted on {}", info.mounted_on.join(", ")),
        "closed" => "closed in order".into(),
        _ => "in use, or not closed in order: the next mount recovers it".into(),
    };
    let known = |name: &str| if name.is_empty() { "-".into() } else { name.to_owned() };
    format!(
        "image    {}\nlabel    {}\nUUID     {}\nsize     {}, nodes of {}, log of {}\ncreated  {}\nstate    {state}\n\
         format   version {}, features {:#x}, and {:#x} that may be ignored{}\n",
        info.image,
        known(&info.label),
        info.uuid,
        show(info.size),
        show(info.node_size),
        show(info.log_size),
        info.created,
        info.format,
        info.incompatible_features,
        info.compatible_features,
        match identity.merge.as_str() {
            "pando-fs" => String::new(),
            other => format!("\nholds    no file system, but a store of {other}"),
        },
    )
}

/// `ID_FS_*` as blkid has them. What could end a line or a value, or lead a link to another directory, is written as
/// `\xNN` where udev expects that, and `_` elsewhere.
fn udev(info: &Info) -> String {
    let plain = |c: char| match c.is_ascii() {
        true => c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c),
        false => !c.is_control(),
    };
    let safe: String = info.label.chars().map(|c| if plain(c) || c == '/' { c } else { '_' }).collect();
    let encode = |c: char| match plain(c) {
        true => c.to_string(),
        false => c.encode_utf8(&mut [0; 4]).bytes().map(|b| format!("\\x{b:02x}")).collect(),
    };
    let encoded: String = info.label.chars().map(encode).collect();
    let mut out = format!(
        "ID_FS_TYPE=pando\nID_FS_USAGE=filesystem\nID_FS_VERSION={}\nID_FS_UUID={}\nID_FS_UUID_ENC={1}\n",
        info.format, info.uuid
    );
    if !info.label.is_empty() {
        out += &format!("ID_FS_LABEL={safe}\nID_FS_LABEL_ENC={encoded}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_dates() {
        assert_eq!(date(1_790_000_000_123_456_789), "2026-09-21T14:13:20Z");
        assert_eq!(date(u64::MAX).len(), 20);
    }
}

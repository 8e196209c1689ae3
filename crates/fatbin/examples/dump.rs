//! Lists the contents of an image file: `cargo run -p katydid-fatbin --example dump FILE`.

use std::error::Error;

use katydid_fatbin::ModuleImage;

fn main() -> Result<(), Box<dyn Error>> {
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path)?;
        let image = ModuleImage::from_bytes(&bytes)?;
        println!("{path}: {:?}, {} of {} bytes", image.kind(), image.parts()[0].len(), bytes.len());
        for container in image.containers()? {
            for entry in container.entries() {
                let entry = entry?;
                let (kind, sm, flags) = (entry.kind.0, entry.sm, entry.flags);
                println!(
                    "  kind {kind} sm {sm} flags {flags:#x} name {:?}: {} bytes",
                    entry.name(),
                    entry.contents()?.len()
                );
            }
        }
    }
    Ok(())
}

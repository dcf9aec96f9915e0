//! Key pairs for SSH in OpenSSH's own format: Ed25519, without a passphrase.
//!
//! Source: OpenSSH's `PROTOCOL.key`, and RFC 8709.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{Ed25519KeyPair, KeyPair};

/// Name of the key type.
const TYPE: &[u8] = b"ssh-ed25519";
/// Length of a seed in bytes.
pub const SEED_BYTES: usize = 32;
/// Length of a line of a private key, in characters.
const LINE: usize = 70;
/// The private part is padded to a multiple of this number of bytes.
const BLOCK: usize = 8;

/// A key pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The private key, as in a file `id_ed25519`.
    pub private: String,
    /// The public key, as a line of a file `authorized_keys`.
    pub public: String,
}

/// The key pair of a random seed.
///
/// # Errors
/// The seed is rejected.
pub fn from_seed(seed: &[u8; SEED_BYTES]) -> Result<Keys, &'static str> {
    let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| "the seed of the SSH key is rejected")?;
    let public = pair.public_key().as_ref();
    let mut blob = Vec::new();
    write(&mut blob, TYPE);
    write(&mut blob, public);
    let mut file = b"openssh-key-v1\0".to_vec();
    // No cipher, and so no function and options that derive its key.
    write(&mut file, b"none");
    write(&mut file, b"none");
    write(&mut file, b"");
    file.extend(1_u32.to_be_bytes());
    write(&mut file, &blob);
    write(&mut file, &private_part(seed, public));
    let text = STANDARD.encode(file);
    let mut private = "-----BEGIN OPENSSH PRIVATE KEY-----\n".to_owned();
    for line in text.as_bytes().chunks(LINE) {
        private.extend(line.iter().map(|byte| char::from(*byte)));
        private.push('\n');
    }
    private.push_str("-----END OPENSSH PRIVATE KEY-----\n");
    let public = format!("ssh-ed25519 {}\n", STANDARD.encode(blob));
    Ok(Keys { private, public })
}

fn private_part(seed: &[u8], public: &[u8]) -> Vec<u8> {
    // Two equal numbers show that the decryption was right; there is none.
    let mut part = vec![0; 8];
    write(&mut part, TYPE);
    write(&mut part, public);
    write(&mut part, &[seed, public].concat());
    write(&mut part, b"");
    let mut padding = 1..=u8::MAX;
    while !part.len().is_multiple_of(BLOCK) {
        part.extend(padding.next());
    }
    part
}

/// Appends a string with its length.
fn write(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    to.extend(bytes);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn ssh_reads_the_private_key_and_derives_the_public_one() {
        let keys = from_seed(&[7; SEED_BYTES]).expect("keys");
        assert!(keys.public.starts_with("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI"), "{}", keys.public);
        if Command::new("ssh-keygen").arg("-?").output().is_err() {
            return berth_testing::skip("ssh-keygen is not installed");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("key");
        std::fs::write(&file, &keys.private).expect("written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("permissions");
        let output = Command::new("ssh-keygen").arg("-y").arg("-f").arg(&file).output().expect("it runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), keys.public.trim());
    }
}

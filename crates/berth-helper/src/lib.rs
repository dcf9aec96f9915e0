//! The shared parts of Berth's helper processes, such as a pod's supervisor: messages with file
//! descriptors ([`wire`]), the lock of a process's folder, and a start without inherited
//! descriptors.
//!
//! A helper process is the executable of Berth with a hidden command. It continues when the process
//! that started it ends.

#[cfg(target_os = "linux")]
mod lock;
#[cfg(target_os = "linux")]
pub mod wire;

#[cfg(target_os = "linux")]
pub use lock::Lock;

/// Environment variable of helper processes, which use little memory. By default the memory
/// allocator of `berth` would use huge pages, and the kernel would fill them with zeros.
pub const ENVIRONMENT: (&str, &str) = ("MIMALLOC_DISALLOW_ARENA_ALLOC", "1");

/// Closes all file descriptors except the standard streams. Descriptors that the parent of Berth
/// left open must not stay open while the helper process runs, and its children must not inherit
/// them.
#[cfg(target_os = "linux")]
pub fn close_inherited() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // Collected first, so that the folder is closed before its number can be reused.
    let inherited: Vec<i32> = numbers.filter(|number| *number > 2).collect();
    for number in inherited {
        let _ = nix::unistd::close(number);
    }
}

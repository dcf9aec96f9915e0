//! The system-call filter. System calls that change the machine fail with a permission error.
//!
//! The filter denies listed calls, because a list of allowed calls would be outdated with every new
//! kernel. The denied calls need capabilities that containers lack by default. The filter also
//! keeps bugs in them out of reach.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use super::Result;
use crate::protocol::WireError;

/// Denied system calls.
const DENIED: [i64; 41] = [
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_move_pages,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];

/// Flags of `clone` that create namespaces.
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// Applies the filter to this process and its descendants. Does nothing on a processor that the
/// filter's compiler does not support.
pub(super) fn apply() -> Result<()> {
    let Ok(arch) = TargetArch::try_from(std::env::consts::ARCH) else { return Ok(()) };
    let failed = |error: String| WireError::Internal(format!("system-call filter: {error}"));
    let denied =
        filter(arch, SeccompAction::Errno(libc::EPERM as u32), denied_rules().map_err(failed)?).map_err(failed)?;
    // Programs fall back from `clone3` to `clone`, whose flags a filter can see.
    let missing = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let missing = filter(arch, SeccompAction::Errno(libc::ENOSYS as u32), missing).map_err(failed)?;
    for program in [denied, missing] {
        seccompiler::apply_filter(&program).map_err(|error| failed(error.to_string()))?;
    }
    Ok(())
}

fn denied_rules() -> std::result::Result<BTreeMap<i64, Vec<SeccompRule>>, String> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = DENIED.iter().map(|call| (*call, Vec::new())).collect();
    let mut clone = Vec::new();
    for bit in (0..32).map(|bit| 1u64 << bit).filter(|bit| NAMESPACES as u32 as u64 & bit != 0) {
        let condition = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(bit), bit)
            .map_err(|error| error.to_string())?;
        clone.push(SeccompRule::new(vec![condition]).map_err(|error| error.to_string())?);
    }
    rules.insert(libc::SYS_clone, clone);
    Ok(rules)
}

fn filter(
    arch: TargetArch,
    action: SeccompAction,
    rules: BTreeMap<i64, Vec<SeccompRule>>,
) -> std::result::Result<BpfProgram, String> {
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch).map_err(|error| error.to_string())?;
    BpfProgram::try_from(filter).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_compiles_for_each_processor() {
        for arch in [TargetArch::x86_64, TargetArch::aarch64] {
            let action = SeccompAction::Errno(libc::EPERM as u32);
            assert!(filter(arch, action, denied_rules().unwrap()).is_ok());
        }
    }
}

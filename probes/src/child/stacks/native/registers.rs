//! The registers that unwinding needs, on the architectures of this program.

use framehop::UnwindRegsNative;
use nix::libc;

/// Registers of a stopped thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Registers {
    pub(super) instruction: u64,
    pub(super) stack: u64,
    frame: u64,
    /// Of architectures that keep the return address in a register.
    #[cfg(target_arch = "aarch64")]
    link: u64,
}

impl Registers {
    /// Of a thread that was not stopped. A caller that keeps its frame in a register which no callee has saved ends the
    /// stack.
    pub(super) const fn of_waiting(stack: u64, instruction: u64) -> Self {
        Self {
            instruction,
            stack,
            frame: 0,
            #[cfg(target_arch = "aarch64")]
            link: 0,
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Registers {
    pub(super) fn of(registers: &libc::user_regs_struct) -> Self {
        let libc::user_regs_struct { rip, rsp, rbp, .. } = *registers;
        Self { instruction: rip, stack: rsp, frame: rbp }
    }

    pub(super) fn for_unwinding(self, _max_known_address: u64) -> UnwindRegsNative {
        UnwindRegsNative::new(self.instruction, self.stack, self.frame)
    }
}

#[cfg(target_arch = "aarch64")]
impl Registers {
    pub(super) fn of(registers: &libc::user_regs_struct) -> Self {
        let [frame, link] = [registers.regs[29], registers.regs[30]];
        Self { instruction: registers.pc, stack: registers.sp, frame, link }
    }

    pub(super) fn for_unwinding(self, max_known_address: u64) -> UnwindRegsNative {
        // Return addresses are signed in their upper bits.
        let mask = framehop::aarch64::PtrAuthMask::from_max_known_address(max_known_address.max(1 << 47));
        UnwindRegsNative::new_with_ptr_auth_mask(mask, self.link, self.stack, self.frame)
    }
}

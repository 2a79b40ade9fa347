//! A share of an accelerator, as Alibaba Cloud's gpushare device plugin gives it to a container: the plugin schedules
//! by memory and enforces nothing, so the launcher does.
//!
//! The plugin sets variables: the device (`ALIYUN_COM_GPU_MEM_IDX`), the share of its memory
//! (`ALIYUN_COM_GPU_MEM_CONTAINER`) and its whole memory (`ALIYUN_COM_GPU_MEM_DEV`), both in its configured unit, GiB
//! or MiB. If it found no device, the index is -1 and `NVIDIA_VISIBLE_DEVICES` has a message.

use serde::{Deserialize, Serialize};

/// The device.
pub const INDEX: &str = "ALIYUN_COM_GPU_MEM_IDX";

/// The memory of this container.
pub const PART: &str = "ALIYUN_COM_GPU_MEM_CONTAINER";

/// The whole memory.
pub const WHOLE: &str = "ALIYUN_COM_GPU_MEM_DEV";

/// The devices that the container shows.
pub const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// The prefix of the plugin's message when no device had enough room: `no-gpu-has-5GiB-to-run`.
const NO_ROOM: &str = "no-gpu-has-";

/// A share of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The device, in the host's own order (NVML's).
    pub device: u32,
    /// Units of its memory, at least 1.
    pub part: u64,
    /// Its units in total; `part` or more.
    pub whole: u64,
}

/// The share of a node's workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareTerms {
    /// The container's share.
    pub share: Share,
    /// The number of workers that divide it, at least 1.
    pub workers: u32,
    /// Workers far above their share are stopped.
    pub enforces: bool,
}

/// Why a share cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// No device had enough room.
    #[error(
        "no accelerator of this node has as much free memory as the container requests: {VISIBLE}={sentence}; \
         request less (aliyun.com/gpu-mem), or wait until another container ends"
    )]
    NoRoom {
        /// The plugin's message.
        sentence: String,
    },
    /// A variable of the plugin is not a number in its range.
    #[error(
        "`{variable}={value}`: expected {expected}; check the configuration of the GPU share plugin on this node"
    )]
    Number {
        variable: &'static str,
        value: String,
        /// What it may be.
        expected: &'static str,
    },
}

impl Share {
    /// Reads the share from an environment. `None`: the container has no share, but whole devices or none.
    ///
    /// # Errors
    /// When there was no room, or the variables are invalid.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, ShareError> {
        let visible = get(VISIBLE).unwrap_or_default();
        if visible.starts_with(NO_ROOM) {
            return Err(ShareError::NoRoom { sentence: visible });
        }
        let number = |variable: &'static str, expected: &'static str, least: u64| {
            let Some(value) = get(variable) else { return Ok(None) };
            match value.trim().parse::<u64>().ok().filter(|number| *number >= least) {
                Some(number) => Ok(Some(number)),
                None => Err(ShareError::Number { variable, value, expected }),
            }
        };
        if get(INDEX).is_some_and(|index| index.trim() == "-1") {
            let sentence = if visible.is_empty() { format!("(none), {INDEX}=-1") } else { visible };
            return Err(ShareError::NoRoom { sentence });
        }
        let amount = "a number of GiB or MiB, at least 1";
        let (Some(part), Some(whole)) = (number(PART, amount, 1)?, number(WHOLE, amount, 1)?) else {
            return Ok(None);
        };
        if part > whole {
            let value = format!("{part}, with {WHOLE}={whole}");
            return Err(ShareError::Number {
                variable: PART,
                value,
                expected: "no more than the device has",
            });
        }
        let device = number(INDEX, "the number of a device", 0)?.unwrap_or(0);
        let Ok(device) = u32::try_from(device) else {
            let value = device.to_string();
            return Err(ShareError::Number { variable: INDEX, value, expected: "the number of a device" });
        };
        Ok(Some(Self { device, part, whole }))
    }

    /// The part of the device's memory for each of so many workers, above 0 and at most 1; rounded down to
    /// thousandths, so that their sum stays below the share.
    #[must_use]
    pub fn fraction_of_each(self, workers: u32) -> f64 {
        let permille = self.of_each(1000, workers).clamp(1, 1000);
        f64::from(u32::try_from(permille).unwrap_or(1000)) / 1000.0
    }

    /// Bytes of each of so many workers, of a device with this much memory.
    #[must_use]
    pub fn bytes_of_each(self, total: u64, workers: u32) -> u64 {
        self.of_each(total, workers)
    }

    /// The device's memory in bytes by the plugin's variables, where its driver does not report it: units above 1024
    /// are MiB, for no device has as many GiB.
    #[must_use]
    pub fn presumed_total(self) -> u64 {
        let unit: u64 = if self.whole > 1024 { 1 << 20 } else { 1 << 30 };
        self.whole.saturating_mul(unit)
    }

    fn of_each(self, all: u64, workers: u32) -> u64 {
        let parts = u128::from(all) * u128::from(self.part);
        let each = parts / u128::from(self.whole.max(1)) / u128::from(workers.max(1));
        u64::try_from(each).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests; thousandths are exact enough")]

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Share>, ShareError> {
        Share::read(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_share_of_the_plugin_is_a_fraction_of_its_device() {
        let share = read(&[
            (INDEX, "0"),
            ("ALIYUN_COM_GPU_MEM_POD", "5"),
            (PART, "5"),
            (WHOLE, "15"),
            (VISIBLE, "all"),
        ]);
        let share = share.unwrap().unwrap();
        assert_eq!(share, Share { device: 0, part: 5, whole: 15 });
        assert_eq!((share.fraction_of_each(1), share.fraction_of_each(2)), (0.333, 0.166));
        assert_eq!(share.presumed_total(), 15 << 30);
        assert_eq!(share.bytes_of_each(15 << 30, 1), 5 << 30);
        let mib = Share { device: 0, part: 5120, whole: 15360 };
        assert_eq!((mib.fraction_of_each(1), mib.presumed_total()), (0.333, 15 << 30));
        assert_eq!(Share { device: 0, part: 1, whole: u64::MAX }.fraction_of_each(8), 0.001);
    }

    #[test]
    fn without_the_variables_there_is_no_share() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[(VISIBLE, "all")]), Ok(None));
        assert_eq!(read(&[(INDEX, "0"), (PART, "5")]), Ok(None));
        assert_eq!(read(&[(PART, "5"), (WHOLE, "15")]).unwrap().unwrap().device, 0);
    }

    #[test]
    fn no_room_ends_it_with_the_plugins_sentence() {
        for variables in [
            &[(INDEX, "-1"), (PART, "5"), (WHOLE, "15"), (VISIBLE, "no-gpu-has-5GiB-to-run")][..],
            &[(VISIBLE, "no-gpu-has-5GiB-to-run")],
        ] {
            let error = read(variables).unwrap_err().to_string();
            assert!(error.contains("NVIDIA_VISIBLE_DEVICES=no-gpu-has-5GiB-to-run"), "{error}");
        }
        assert!(matches!(read(&[(INDEX, "-1")]), Err(ShareError::NoRoom { .. })));
    }

    #[test]
    fn nonsense_is_refused_with_its_value() {
        for (variables, value) in [
            ([(PART, "x"), (WHOLE, "15")], "ALIYUN_COM_GPU_MEM_CONTAINER=x"),
            ([(PART, "0"), (WHOLE, "15")], "ALIYUN_COM_GPU_MEM_CONTAINER=0"),
            ([(PART, "5"), (WHOLE, "-3")], "ALIYUN_COM_GPU_MEM_DEV=-3"),
            (
                [(PART, "16"), (WHOLE, "15")],
                "ALIYUN_COM_GPU_MEM_CONTAINER=16, with ALIYUN_COM_GPU_MEM_DEV=15",
            ),
        ] {
            let error = read(&variables).unwrap_err().to_string();
            assert!(error.contains(value), "{error}");
        }
        let far = read(&[(INDEX, "99999999999"), (PART, "5"), (WHOLE, "15")]).unwrap_err().to_string();
        assert!(far.contains("ALIYUN_COM_GPU_MEM_IDX=99999999999"), "{far}");
    }
}

//! The table of requests, and decoding by the table.

use vhost::vhost_user::message::{
    FrontendReq, VhostUserLog, VhostUserMemory, VhostUserMemoryRegion, VhostUserSingleMemoryRegion,
    VhostUserVringAddr, VhostUserVringState,
};
use vm_memory::ByteValued;

use super::{BadMessage, Code, Message, Passed, Payload, RegionSpec, VringAddr};
use base::limits::MAX_MESSAGE_FILES;

/// Ring index in the value of `SET_VRING_KICK`, `_CALL` and `_ERR`.
const VRING_INDEX_MASK: u64 = 0xff;

/// Bit in the value of `SET_VRING_KICK`, `_CALL` and `_ERR`: no descriptor comes with the message.
const VRING_NO_FD: u64 = 0x100;

/// The body and descriptors that a request calls for; no descriptors unless stated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Empty,
    /// No body, one descriptor.
    Descriptor,
    Number,
    Ring,
    /// A ring's index, and 0 or 1.
    Switch,
    Address,
    /// A number that holds a ring's index, and one descriptor unless [`VRING_NO_FD`] is set.
    Notifier,
    /// u32 number of regions, u32 padding, the regions; one descriptor for each region.
    Table,
    /// u64 padding, one region, one descriptor.
    NewRegion,
    /// u64 padding, one region; a descriptor may come and is closed: vhost-user.rst asks back-ends
    /// to accept a descriptor with `REM_MEM_REG`, for QEMU before 7.1.
    OldRegion,
    /// The log's size and offset, one descriptor.
    Log,
}

/// The table of served requests: the form, and whether the request has a reply of its own, sent
/// with or without `NEED_REPLY`. `None` for all other requests.
pub(super) const fn shape(request: FrontendReq) -> Option<(Form, bool)> {
    use FrontendReq as R;
    Some(match request {
        R::GET_FEATURES | R::GET_PROTOCOL_FEATURES => (Form::Empty, true),
        R::GET_QUEUE_NUM | R::GET_MAX_MEM_SLOTS => (Form::Empty, true),
        R::SET_OWNER | R::RESET_OWNER => (Form::Empty, false),
        R::SET_FEATURES | R::SET_PROTOCOL_FEATURES => (Form::Number, false),
        R::SEND_RARP | R::NET_SET_MTU => (Form::Number, false),
        R::SET_MEM_TABLE => (Form::Table, false),
        R::ADD_MEM_REG => (Form::NewRegion, false),
        R::REM_MEM_REG => (Form::OldRegion, false),
        R::SET_LOG_BASE => (Form::Log, true),
        R::SET_LOG_FD => (Form::Descriptor, false),
        R::SET_VRING_NUM | R::SET_VRING_BASE => (Form::Ring, false),
        R::SET_VRING_ENABLE => (Form::Switch, false),
        R::GET_VRING_BASE => (Form::Ring, true),
        R::SET_VRING_ADDR => (Form::Address, false),
        R::SET_VRING_KICK | R::SET_VRING_CALL | R::SET_VRING_ERR => (Form::Notifier, false),
        _ => return None,
    })
}

/// True if the request has a reply of its own.
pub(super) fn has_answer(code: Code) -> bool {
    code.known().and_then(shape).is_some_and(|(_, answers)| answers)
}

impl Message {
    /// Returns the request and its payload; `None` for a request that this back-end does not serve,
    /// known to the protocol or not. Closes descriptors that the request does not use, and on an
    /// error all. The stream is at the start of the next message in every case.
    pub fn decode(self) -> Result<Option<(FrontendReq, Payload)>, BadMessage> {
        let Message { head, body, files } = self;
        let Some((request, (form, _))) = head.code.known().and_then(|r| Some((r, shape(r)?)))
        else {
            return Ok(None);
        };
        let view = View { code: head.code, body: &body };
        view.check_size(form)?;
        view.check_files(form, files.len())?;
        Ok(Some((request, view.payload(form, files)?)))
    }
}

/// A body being decoded, with the code for errors.
#[derive(Clone, Copy)]
struct View<'a> {
    code: Code,
    body: &'a [u8],
}

impl View<'_> {
    fn check_size(self, form: Form) -> Result<(), BadMessage> {
        let expected = match form {
            Form::Empty | Form::Descriptor => 0,
            Form::Number | Form::Notifier => size_of::<u64>(),
            Form::Ring | Form::Switch => size_of::<VhostUserVringState>(),
            Form::Address => size_of::<VhostUserVringAddr>(),
            Form::Table => {
                size_of::<VhostUserMemory>() + self.regions()? * size_of::<VhostUserMemoryRegion>()
            }
            Form::NewRegion | Form::OldRegion => size_of::<VhostUserSingleMemoryRegion>(),
            Form::Log => size_of::<VhostUserLog>(),
        };
        let (code, got) = (self.code, self.body.len());
        if got == expected { Ok(()) } else { Err(BadMessage::BodySize { code, expected, got }) }
    }

    fn check_files(self, form: Form, got: usize) -> Result<(), BadMessage> {
        let expected = match form {
            Form::Empty | Form::Number | Form::Ring | Form::Switch | Form::Address => 0,
            Form::Descriptor | Form::NewRegion | Form::Log => 1,
            Form::OldRegion => got.min(1),
            Form::Notifier => usize::from(self.read::<u64>()? & VRING_NO_FD == 0),
            Form::Table => self.regions()?,
        };
        let code = self.code;
        if got == expected { Ok(()) } else { Err(BadMessage::FileCount { code, expected, got }) }
    }

    /// Returns the payload. The caller has checked size and descriptors.
    fn payload(self, form: Form, files: Vec<Passed>) -> Result<Payload, BadMessage> {
        let one = |files: Vec<Passed>| files.into_iter().flatten().next();
        let missing = BadMessage::FileCount { code: self.code, expected: 1, got: 0 };
        Ok(match form {
            Form::Empty | Form::Descriptor => Payload::None,
            Form::Number => Payload::Number(self.read()?),
            Form::Ring | Form::Switch => {
                let VhostUserVringState { index, num } = self.read()?;
                if form == Form::Switch && num > 1 {
                    return Err(BadMessage::Value(self.code, num.into()));
                }
                Payload::Ring(index, num)
            }
            Form::Address => {
                let VhostUserVringAddr { index, flags, descriptor, used, available, log } =
                    self.read()?;
                Payload::Address(VringAddr { index, flags, descriptor, used, available, log })
            }
            Form::Notifier => {
                let value: u64 = self.read()?;
                // With reserved bits set, the index in the low eight bits may not be the ring that
                // was meant.
                if value & !(VRING_INDEX_MASK | VRING_NO_FD) != 0 {
                    return Err(BadMessage::Value(self.code, value));
                }
                let file = if files.is_empty() { None } else { Some(one(files).ok_or(missing)?) };
                Payload::Notifier((value & VRING_INDEX_MASK) as u32, file)
            }
            Form::Table => Payload::Table(self.mem_table(files)?),
            Form::NewRegion => Payload::Region(self.single_region()?, one(files)),
            Form::OldRegion => Payload::Region(self.single_region()?, None),
            Form::Log => {
                let VhostUserLog { mmap_size: size, mmap_offset: offset } = self.read()?;
                Payload::Log(one(files).ok_or(missing)?, offset, size)
            }
        })
    }

    /// Reads the body as one value of the protocol.
    fn read<T: ByteValued>(self) -> Result<T, BadMessage> {
        T::read_exact_from(self.body).map_err(|_| BadMessage::BodySize {
            code: self.code,
            expected: size_of::<T>(),
            got: self.body.len(),
        })
    }

    fn single_region(self) -> Result<RegionSpec, BadMessage> {
        let single: VhostUserSingleMemoryRegion = self.read()?;
        Ok(RegionSpec::from(*single))
    }

    /// Returns the number of regions in a memory table; checked before anything is computed from
    /// it.
    fn regions(self) -> Result<usize, BadMessage> {
        let (VhostUserMemory { num_regions: regions, .. }, _) = self.split_mem_table()?;
        match usize::try_from(regions) {
            Ok(count) if count <= MAX_MESSAGE_FILES => Ok(count),
            _ => Err(BadMessage::TooManyRegions(self.code, regions)),
        }
    }

    /// Returns each region with its descriptor; regions and descriptors come in one order.
    fn mem_table(self, files: Vec<Passed>) -> Result<Vec<(RegionSpec, Passed)>, BadMessage> {
        let (_, regions) = self.split_mem_table()?;
        let regions = regions.chunks_exact(size_of::<VhostUserMemoryRegion>());
        let pairs = regions.zip(files).map(|(bytes, file)| {
            let region: VhostUserMemoryRegion = View { body: bytes, ..self }.read()?;
            Ok((RegionSpec::from(region), file))
        });
        pairs.collect()
    }

    /// Returns the fixed part of a memory table, and the bytes of the regions behind it.
    fn split_mem_table(&self) -> Result<(VhostUserMemory, &[u8]), BadMessage> {
        let (code, got, expected) = (self.code, self.body.len(), size_of::<VhostUserMemory>());
        let parts = self.body.split_at_checked(expected);
        let (head, regions) = parts.ok_or(BadMessage::BodySize { code, expected, got })?;
        Ok((View { body: head, code }.read()?, regions))
    }
}

impl From<VhostUserMemoryRegion> for RegionSpec {
    fn from(region: VhostUserMemoryRegion) -> RegionSpec {
        RegionSpec {
            gpa: region.guest_phys_addr,
            len: region.memory_size,
            uva: region.user_addr,
            offset: region.mmap_offset,
        }
    }
}

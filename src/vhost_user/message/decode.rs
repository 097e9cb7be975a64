//! The table of requests, and decoding by it.

use std::os::fd::OwnedFd;

use vhost::vhost_user::message::{
    FrontendReq, VhostUserLog, VhostUserMemory, VhostUserMemoryRegion, VhostUserSingleMemoryRegion,
    VhostUserVringAddr, VhostUserVringState,
};
use vm_memory::ByteValued;

use super::{BadMessage, Code, Message, Passed, RegionSpec, Request, VringAddr};
use crate::frame::MacAddr;
use crate::limits::MAX_MESSAGE_FILES;

/// Ring index in the value of `SET_VRING_KICK`, `_CALL` and `_ERR`.
const VRING_INDEX_MASK: u64 = 0xff;

/// In the same value: no descriptor comes with this message.
const VRING_NO_FD: u64 = 0x100;

/// The body a request calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    Empty,
    U64,
    VringState,
    VringAddr,
    /// u32 number of regions, u32 padding, the regions.
    MemTable,
    /// u64 padding, one region.
    Region,
    Log,
}

/// How many descriptors a request calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Files {
    None,
    One,
    /// None, but one is taken and closed: vhost-user.rst asks for this with `REM_MEM_REG`, for the
    /// sake of QEMU before 7.1.
    NoneOrIgnored,
    /// One unless the body's [`VRING_NO_FD`] is set.
    UnlessNoFd,
    /// As many as the memory table has regions.
    PerRegion,
}

/// What a request looks like on the wire.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) body: Body,
    pub(super) files: Files,
    /// It has an answer of its own, sent whether or not `NEED_REPLY` is set.
    answers: bool,
}

/// The table of the requests we serve; `None` for all others.
pub(super) const fn shape(request: FrontendReq) -> Option<Shape> {
    use FrontendReq as R;
    let (body, files, answers) = match request {
        R::GET_FEATURES | R::GET_PROTOCOL_FEATURES => (Body::Empty, Files::None, true),
        R::GET_QUEUE_NUM | R::GET_MAX_MEM_SLOTS => (Body::Empty, Files::None, true),
        R::SET_OWNER | R::RESET_OWNER => (Body::Empty, Files::None, false),
        R::SET_FEATURES | R::SET_PROTOCOL_FEATURES => (Body::U64, Files::None, false),
        R::SEND_RARP | R::NET_SET_MTU => (Body::U64, Files::None, false),
        R::SET_MEM_TABLE => (Body::MemTable, Files::PerRegion, false),
        R::ADD_MEM_REG => (Body::Region, Files::One, false),
        R::REM_MEM_REG => (Body::Region, Files::NoneOrIgnored, false),
        R::SET_LOG_BASE => (Body::Log, Files::One, true),
        R::SET_LOG_FD => (Body::Empty, Files::One, false),
        R::SET_VRING_NUM | R::SET_VRING_BASE => (Body::VringState, Files::None, false),
        R::SET_VRING_ENABLE => (Body::VringState, Files::None, false),
        R::GET_VRING_BASE => (Body::VringState, Files::None, true),
        R::SET_VRING_ADDR => (Body::VringAddr, Files::None, false),
        R::SET_VRING_KICK | R::SET_VRING_CALL => (Body::U64, Files::UnlessNoFd, false),
        R::SET_VRING_ERR => (Body::U64, Files::UnlessNoFd, false),
        _ => return None,
    };
    Some(Shape { body, files, answers })
}

/// Whether the request has an answer of its own.
pub(super) fn has_answer(code: Code) -> bool {
    code.known().and_then(shape).is_some_and(|shape| shape.answers)
}

impl Message {
    /// Turns the message into what it asks for. On an error its descriptors are closed; the stream
    /// is at the start of the next message either way.
    pub fn decode(self) -> Result<Request, BadMessage> {
        let Message { head, body, files } = self;
        let code = head.code;
        let Some((request, shape)) = code.known().and_then(|r| Some((r, shape(r)?))) else {
            return Ok(Request::Other { code });
        };
        let view = View { code, body: &body };
        view.check_size(shape.body)?;
        view.check_files(shape.files, files.len())?;
        view.request(request, files)
    }
}

/// A body under decoding, with the code that errors name.
#[derive(Clone, Copy)]
struct View<'a> {
    code: Code,
    body: &'a [u8],
}

impl View<'_> {
    fn check_size(self, shape: Body) -> Result<(), BadMessage> {
        let expected = match shape {
            Body::Empty => 0,
            Body::U64 => size_of::<u64>(),
            Body::VringState => size_of::<VhostUserVringState>(),
            Body::VringAddr => size_of::<VhostUserVringAddr>(),
            Body::MemTable => {
                size_of::<VhostUserMemory>() + self.regions()? * size_of::<VhostUserMemoryRegion>()
            }
            Body::Region => size_of::<VhostUserSingleMemoryRegion>(),
            Body::Log => size_of::<VhostUserLog>(),
        };
        let (code, got) = (self.code, self.body.len());
        if got == expected { Ok(()) } else { Err(BadMessage::BodySize { code, expected, got }) }
    }

    fn check_files(self, shape: Files, got: usize) -> Result<(), BadMessage> {
        let expected = match shape {
            Files::None => 0,
            Files::One => 1,
            Files::NoneOrIgnored => got.min(1),
            Files::UnlessNoFd => usize::from(self.value()? & VRING_NO_FD == 0),
            Files::PerRegion => self.regions()?,
        };
        let code = self.code;
        if got == expected { Ok(()) } else { Err(BadMessage::FileCount { code, expected, got }) }
    }

    /// The request, once size and descriptors are known to be right.
    fn request(self, request: FrontendReq, files: Vec<Passed>) -> Result<Request, BadMessage> {
        use FrontendReq as R;
        Ok(match request {
            R::GET_FEATURES => Request::GetFeatures,
            R::SET_FEATURES => Request::SetFeatures(self.value()?),
            R::SET_OWNER => Request::SetOwner,
            R::RESET_OWNER => Request::ResetOwner,
            R::SET_MEM_TABLE => Request::SetMemTable(self.mem_table(files)?),
            R::SET_LOG_BASE => {
                let VhostUserLog { mmap_size: size, mmap_offset: offset } = self.read()?;
                Request::SetLogBase { size, offset, file: self.one(files)? }
            }
            R::SET_LOG_FD => Request::SetLogFd(self.one(files)?),
            R::GET_PROTOCOL_FEATURES => Request::GetProtocolFeatures,
            R::SET_PROTOCOL_FEATURES => Request::SetProtocolFeatures(self.value()?),
            R::GET_QUEUE_NUM => Request::GetQueueNum,
            R::SEND_RARP => {
                // The address lies in the first six bytes in memory, whatever the byte order.
                let [a, b, c, d, e, f, ..] = self.value()?.to_ne_bytes();
                Request::SendRarp(MacAddr([a, b, c, d, e, f]))
            }
            R::NET_SET_MTU => Request::NetSetMtu(self.value()?),
            R::GET_MAX_MEM_SLOTS => Request::GetMaxMemSlots,
            R::ADD_MEM_REG => {
                Request::AddMemReg(self.single_region()?, files.into_iter().next().flatten())
            }
            R::REM_MEM_REG => Request::RemMemReg(self.single_region()?),
            _ => return self.vring_request(request, files),
        })
    }

    /// [`View::request`] for the requests about one ring.
    fn vring_request(
        self,
        request: FrontendReq,
        files: Vec<Passed>,
    ) -> Result<Request, BadMessage> {
        use FrontendReq as R;
        let code = self.code;
        Ok(match request {
            R::SET_VRING_NUM => {
                let (index, num) = self.vring_state()?;
                Request::SetVringNum { index, num }
            }
            R::SET_VRING_ADDR => Request::SetVringAddr(self.vring_addr()?),
            R::SET_VRING_BASE => {
                let (index, base) = self.vring_state()?;
                Request::SetVringBase { index, base }
            }
            R::GET_VRING_BASE => Request::GetVringBase { index: self.vring_state()?.0 },
            R::SET_VRING_ENABLE => match self.vring_state()? {
                (index, num @ (0 | 1)) => Request::SetVringEnable { index, enable: num == 1 },
                (_, num) => {
                    return Err(BadMessage::Value { code, value: num.into() });
                }
            },
            R::SET_VRING_KICK => {
                let (index, file) = self.vring_file(files)?;
                Request::SetVringKick { index, file }
            }
            R::SET_VRING_CALL => {
                let (index, file) = self.vring_file(files)?;
                Request::SetVringCall { index, file }
            }
            R::SET_VRING_ERR => {
                let (index, file) = self.vring_file(files)?;
                Request::SetVringErr { index, file }
            }
            _ => Request::Other { code },
        })
    }

    /// The body as one value of the protocol.
    fn read<T: ByteValued>(self) -> Result<T, BadMessage> {
        T::read_exact_from(self.body).map_err(|_| BadMessage::BodySize {
            code: self.code,
            expected: size_of::<T>(),
            got: self.body.len(),
        })
    }

    fn value(self) -> Result<u64, BadMessage> {
        self.read()
    }

    fn vring_state(self) -> Result<(u32, u32), BadMessage> {
        let VhostUserVringState { index, num } = self.read()?;
        Ok((index, num))
    }

    fn vring_addr(self) -> Result<VringAddr, BadMessage> {
        let VhostUserVringAddr { index, flags, descriptor, used, available, log } = self.read()?;
        Ok(VringAddr { index, flags, descriptor, used, available, log })
    }

    /// Ring index and descriptor of KICK, CALL and ERR. Reserved bits are refused: with them set,
    /// the eight bits left need not be the ring that was meant.
    fn vring_file(self, files: Vec<Passed>) -> Result<(u32, Option<OwnedFd>), BadMessage> {
        let value = self.value()?;
        if value & !(VRING_INDEX_MASK | VRING_NO_FD) != 0 {
            return Err(BadMessage::Value { code: self.code, value });
        }
        let file = if files.is_empty() { None } else { Some(self.one(files)?) };
        Ok(((value & VRING_INDEX_MASK) as u32, file))
    }

    fn single_region(self) -> Result<RegionSpec, BadMessage> {
        let single: VhostUserSingleMemoryRegion = self.read()?;
        Ok(RegionSpec::from(*single))
    }

    /// Number of regions a memory table announces, bounded before anything is computed from it.
    fn regions(self) -> Result<usize, BadMessage> {
        let (VhostUserMemory { num_regions: regions, .. }, _) = self.split_mem_table()?;
        match usize::try_from(regions) {
            Ok(count) if count <= MAX_MESSAGE_FILES => Ok(count),
            _ => Err(BadMessage::TooManyRegions { code: self.code, regions }),
        }
    }

    /// Each region with its descriptor; they come in the same order.
    fn mem_table(self, files: Vec<Passed>) -> Result<Vec<(RegionSpec, Passed)>, BadMessage> {
        let (_, regions) = self.split_mem_table()?;
        let regions = regions.chunks_exact(size_of::<VhostUserMemoryRegion>());
        let pairs = regions.zip(files).map(|(bytes, file)| {
            let region: VhostUserMemoryRegion = View { body: bytes, ..self }.read()?;
            Ok((RegionSpec::from(region), file))
        });
        pairs.collect()
    }

    /// The fixed part of a memory table, and the regions after it.
    fn split_mem_table(&self) -> Result<(VhostUserMemory, &[u8]), BadMessage> {
        let (code, got, expected) = (self.code, self.body.len(), size_of::<VhostUserMemory>());
        let parts = self.body.split_at_checked(expected);
        let (head, regions) = parts.ok_or(BadMessage::BodySize { code, expected, got })?;
        Ok((View { body: head, code }.read()?, regions))
    }

    fn one(self, files: Vec<Passed>) -> Result<OwnedFd, BadMessage> {
        let missing = BadMessage::FileCount { code: self.code, expected: 1, got: 0 };
        files.into_iter().flatten().next().ok_or(missing)
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

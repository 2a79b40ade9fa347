//! All pairs of accelerators of one node.

use super::{LinkKind, MAX_GPUS, UnknownLink};

/// The most links that one device of any generation has (V100 6, A100 12, from H100 on 18). A device that shows more
/// has the same ones to several others, which takes a switch.
const MAX_LINKS: u32 = 18;

/// A square, symmetric table of 1 to 16 accelerators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    size: usize,
    /// Row by row; `None` where only the bandwidth is known.
    links: Vec<Option<LinkKind>>,
    /// Row by row, in MB/s in one direction; 0 on the diagonal.
    mbps: Vec<u32>,
    /// The NUMA node of each, where it is known.
    numa: Vec<Option<u32>>,
    is_switched: bool,
}

/// Why a table is no topology.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadMatrix {
    /// The table is too long.
    #[error("the topology table is longer than {0} bytes, the limit")]
    TooLong(usize),
    /// There is no table.
    #[error("no topology table found: expected a header line that starts with GPU0")]
    NoTable,
    /// The header does not name GPU0, GPU1 and so on in this order.
    #[error(
        "the columns of the topology table are not GPU0, GPU1 and so on, each once: `{0}` is out of order"
    )]
    Column(String),
    /// The rows do not have the order of the header.
    #[error(
        "the rows of the topology table do not match its columns: found row {found}, expected row {expected}"
    )]
    Row {
        /// The expected column or row.
        expected: String,
        /// The actual one.
        found: String,
    },
    /// The numbers of rows and columns differ: the table may be cut off.
    #[error("the topology table is not square (columns: {columns}, rows: {rows})")]
    NotSquare {
        /// Those of accelerators.
        columns: usize,
        /// Those of accelerators.
        rows: usize,
    },
    /// A row is too short or too long.
    #[error("the topology table is not square: row GPU{row} has length {cells}; expected {columns}")]
    RowLength {
        row: usize,
        /// Its length.
        cells: usize,
        /// The expected length.
        columns: usize,
    },
    /// An unknown link.
    #[error("row GPU{row} of the topology table: {name}")]
    Link { row: usize, name: UnknownLink },
    /// A bandwidth that is not a number, or out of range.
    #[error("row GPU{row} of the bandwidth table: `{name}` is not a bandwidth in GB/s from 0 to 10000")]
    Number { row: usize, name: String },
    /// `X` must be on the diagonal only.
    #[error(
        "the topology table says {link} between GPU{one} and GPU{other}; X is expected between a GPU and \
         itself, and nowhere else"
    )]
    Diagonal {
        /// The one.
        one: usize,
        /// The other; may be the same.
        other: usize,
        /// `X` between two, or something else between a device and itself.
        link: LinkKind,
    },
    /// Links must be symmetric.
    #[error(
        "the topology table is not symmetric: {there} from GPU{one} to GPU{other}, {back} from GPU{other} to GPU{one}"
    )]
    Asymmetric {
        /// The lower number.
        one: usize,
        /// The higher number.
        other: usize,
        /// In the row of one.
        there: String,
        /// In the row of the other.
        back: String,
    },
    /// More devices than the search supports.
    #[error("the topology has {0} GPUs; at most {MAX_GPUS} are supported")]
    TooMany(usize),
}

impl Matrix {
    /// From the links, and the NUMA node of each (missing ones are unknown).
    ///
    /// # Errors
    ///
    /// When it is empty, larger than [`MAX_GPUS`], not square or not symmetric, or its diagonal is not
    /// [`LinkKind::Same`].
    pub fn new(rows: &[Vec<LinkKind>], numa: &[Option<u32>]) -> Result<Self, BadMatrix> {
        let size = sized(rows)?;
        for (one, row) in rows.iter().enumerate() {
            for (other, link) in row.iter().enumerate() {
                if (one == other) != (*link == LinkKind::Same) {
                    return Err(BadMatrix::Diagonal { one, other, link: *link });
                }
            }
        }
        symmetric(rows)?;
        let links: Vec<LinkKind> = rows.iter().flatten().copied().collect();
        let is_beyond = |row: &Vec<LinkKind>| row.iter().map(|link| link.count()).sum::<u32>() > MAX_LINKS;
        Ok(Self {
            size,
            mbps: links.iter().map(|link| link.mbps()).collect(),
            links: links.into_iter().map(Some).collect(),
            numa: (0..size).map(|gpu| numa.get(gpu).copied().flatten()).collect(),
            is_switched: rows.iter().any(is_beyond),
        })
    }

    /// From measured bandwidths in GB/s in one direction. The diagonal is ignored. The smaller value of both
    /// directions counts; measurements differ, so these need not be the same.
    ///
    /// # Errors
    ///
    /// When it is empty, larger than [`MAX_GPUS`], not square, or a value is no bandwidth.
    pub fn measured(rows: &[Vec<f64>]) -> Result<Self, BadMatrix> {
        let size = sized(rows)?;
        let mut mbps = vec![0; size * size];
        for (one, row) in rows.iter().enumerate() {
            for (other, gbps) in row.iter().enumerate().filter(|(other, _)| *other != one) {
                if !(0.0..=10_000.0).contains(gbps) {
                    return Err(BadMatrix::Number { row: one, name: gbps.to_string() });
                }
                let back = rows.get(other).and_then(|row| row.get(one)).copied().unwrap_or_default();
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
                let value = (gbps.min(back).max(0.0) * 1000.0).round() as u32;
                mbps[one * size + other] = value;
            }
        }
        Ok(Self { size, links: vec![None; size * size], mbps, numa: vec![None; size], is_switched: false })
    }

    /// How many accelerators.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// The link between two of them; `None` where only the bandwidth is known.
    ///
    /// # Panics
    ///
    /// When one of them is not there.
    #[must_use]
    pub fn link(&self, one: usize, other: usize) -> Option<LinkKind> {
        self.links[one * self.size + other]
    }

    /// The bandwidth between two of them, in MB/s in one direction: measured, or assumed for the link.
    ///
    /// # Panics
    ///
    /// When one of them is not there.
    #[must_use]
    pub fn mbps(&self, one: usize, other: usize) -> u32 {
        self.mbps[one * self.size + other]
    }

    /// How many direct links two of them have.
    ///
    /// # Panics
    ///
    /// When one of them is not there.
    #[must_use]
    pub fn links(&self, one: usize, other: usize) -> u32 {
        self.link(one, other).map_or(0, LinkKind::count)
    }

    /// The NUMA node of one, where it is known.
    #[must_use]
    pub fn numa(&self, gpu: usize) -> Option<u32> {
        self.numa.get(gpu).copied().flatten()
    }

    /// Whether the links go to a switch, so that one device's are the same ones to all others.
    #[must_use]
    pub const fn is_switched(&self) -> bool {
        self.is_switched
    }

    /// Whether bandwidths were measured, and nothing is known of links.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.links.iter().all(Option::is_none)
    }

    /// The same connections with `PHB` for every `SYS`, as virtual machines show them.
    #[cfg(test)]
    pub(super) fn as_in_a_virtual_machine(&self) -> Self {
        use super::PciPath;
        let of = |link: LinkKind| {
            if link == LinkKind::Pci(PciPath::System) { LinkKind::Pci(PciPath::HostBridge) } else { link }
        };
        let row = |one: usize| (0..self.size).map(|other| of(self.link(one, other).unwrap())).collect();
        Self::new(&(0..self.size).map(row).collect::<Vec<_>>(), &self.numa).unwrap()
    }
}

fn sized<T>(rows: &[Vec<T>]) -> Result<usize, BadMatrix> {
    let size = rows.len();
    if size > MAX_GPUS {
        return Err(BadMatrix::TooMany(size));
    }
    if size == 0 {
        return Err(BadMatrix::NoTable);
    }
    match rows.iter().position(|row| row.len() != size) {
        Some(row) => Err(BadMatrix::RowLength { row, cells: rows[row].len(), columns: size }),
        None => Ok(size),
    }
}

fn symmetric(rows: &[Vec<LinkKind>]) -> Result<(), BadMatrix> {
    for (one, row) in rows.iter().enumerate() {
        for (other, there) in row.iter().enumerate().skip(one + 1) {
            let back = &rows[other][one];
            if there != back {
                let (there, back) = (there.to_string(), back.to_string());
                return Err(BadMatrix::Asymmetric { one, other, there, back });
            }
        }
    }
    Ok(())
}

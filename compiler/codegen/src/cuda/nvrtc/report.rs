//! Reads what NVRTC and its assembler say: registers and spills of each kernel, and warnings.

/// What was said of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its kernels, in the order in which they were compiled.
    pub kernels: Vec<KernelReport>,
    /// Lines that warn.
    pub warnings: Vec<String>,
}

/// What a kernel needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelReport {
    /// The function's name.
    pub name: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of memory of a thread's own.
    pub stack_bytes: u32,
    /// Bytes that a thread moves out of registers for lack of them.
    pub spill_store_bytes: u32,
    /// Bytes that it moves back.
    pub spill_load_bytes: u32,
}

impl Report {
    /// Reads a log.
    pub(super) fn of(log: &str) -> Self {
        let mut report = Self::default();
        for line in log.lines() {
            // The assembler calls this information: products of groups that it makes one after another.
            if line.contains("warning") || line.contains("Potential Performance Loss") {
                report.warnings.push(line.to_owned());
            } else if let Some((_, rest)) = line.split_once("Compiling entry function '") {
                let name = rest.split('\'').next().unwrap_or_default().to_owned();
                report.kernels.push(KernelReport { name, ..KernelReport::default() });
            } else if let Some(kernel) = report.kernels.last_mut() {
                kernel.read(line);
            }
        }
        report
    }
}

impl KernelReport {
    /// Whether the kernel touches no memory but what it is given.
    pub fn is_in_registers(&self) -> bool {
        self.stack_bytes == 0 && self.spill_store_bytes == 0 && self.spill_load_bytes == 0
    }

    fn read(&mut self, line: &str) {
        for part in line.split([',', ':', '.']) {
            let mut words = part.split_whitespace().skip_while(|word| *word == "Used");
            let Some(number) = words.next().and_then(|word| word.parse::<u32>().ok()) else { continue };
            match words.collect::<Vec<_>>().join(" ").as_str() {
                "registers" => self.registers = number,
                "bytes stack frame" => self.stack_bytes = number,
                "bytes spill stores" => self.spill_store_bytes = number,
                "bytes spill loads" => self.spill_load_bytes = number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{KernelReport, Report};

    #[test]
    fn registers_spills_and_warnings_are_read() {
        let log = "ptxas info    : (C7515) Potential Performance Loss: wgmma.mma_async instructions are serialized\n\
            kernels.cu(3): warning #177-D: variable \"x\" was declared but never referenced\n\
            ptxas info    : Compiling entry function 'norm_k4' for 'sm_100a'\n\
            ptxas info    : Function properties for norm_k4\n\
            ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n\
            ptxas info    : Used 32 registers, used 0 barriers, 8 bytes cumulative stack size\n";
        let report = Report::of(log);
        let kernel = KernelReport {
            name: "norm_k4".to_owned(),
            registers: 32,
            stack_bytes: 8,
            spill_store_bytes: 4,
            spill_load_bytes: 12,
        };
        assert!(!kernel.is_in_registers());
        assert_eq!(report.kernels, [kernel]);
        assert_eq!(report.warnings.len(), 2);
    }
}

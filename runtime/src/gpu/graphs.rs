//! Recording what streams are asked to do, and launching that whole.

use super::Gpu;
use super::calls::{
    check, cuGraphDestroy, cuGraphExecDestroy, cuGraphExecKernelNodeSetParams_v2,
    cuGraphInstantiateWithFlags, cuGraphLaunch, cuStreamBeginCapture_v2, cuStreamEndCapture,
    cuStreamGetCaptureInfo_v3,
};
use super::launch::packed;
use super::tables::{Node, Recorded};
use cudarc::driver::sys::{
    CUDA_KERNEL_NODE_PARAMS, CUgraphNode, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};
use dtlc_emulator::{Argument, DriverError, Graph, Stream};

impl Gpu {
    pub(super) fn begin(&self, stream: Stream) -> Result<(), DriverError> {
        self.enter()?;
        let mut tables = self.tables();
        let raw = tables.stream(stream)?.raw;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        let begun = unsafe { cuStreamBeginCapture_v2(raw, mode) };
        check(begun, || format!("beginning to capture stream {}", stream.0))?;
        let capture = self.capture_of(raw)?.map(|(id, _)| id);
        tables.stream(stream)?.capture = capture;
        tables.captures.extend(capture.map(|id| (id, Vec::new())));
        Ok(())
    }

    pub(super) fn end(&self, stream: Stream) -> Result<Graph, DriverError> {
        self.enter()?;
        let mut tables = self.tables();
        let entry = tables.stream(stream)?;
        let (raw, capture) = (entry.raw, entry.capture.take());
        let capture = capture
            .ok_or_else(|| DriverError::Capture(format!("no capture began on stream {}", stream.0)))?;
        let launches = tables.captures.remove(&capture).unwrap_or_default();
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the stream is alive, the pointer is to a pointer of ours.
        let ended = unsafe { cuStreamEndCapture(raw, &raw mut graph) };
        check(ended, || format!("ending the capture of stream {}", stream.0))?;
        // SAFETY: the graph is whole.
        let made = unsafe { cuGraphInstantiateWithFlags(&raw mut executable, graph, 0) };
        if let Err(error) = check(made, || "making a graph ready".to_owned()) {
            // SAFETY: nothing else knows the graph.
            let _ = unsafe { cuGraphDestroy(graph) };
            return Err(error);
        }
        tables.graphs.push(Some(Recorded { graph, executable, launches }));
        Ok(Graph(tables.graphs.len() as u64 - 1))
    }

    /// The number of the capture that a stream is part of, and what was recorded there last.
    pub(super) fn capture_of(
        &self,
        stream: CUstream,
    ) -> Result<Option<(u64, Vec<CUgraphNode>)>, DriverError> {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut count) = (0, 0);
        let mut nodes: *const CUgraphNode = std::ptr::null();
        let none = std::ptr::null_mut();
        // SAFETY: the stream is alive, the pointers are to variables of ours or null, which is allowed for these.
        let told = unsafe {
            cuStreamGetCaptureInfo_v3(
                stream,
                &raw mut status,
                &raw mut id,
                none,
                &raw mut nodes,
                none.cast(),
                &raw mut count,
            )
        };
        check(told, || "asking for a stream's capture".to_owned())?;
        if status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            return Ok(None);
        }
        let nodes = match count {
            0 => Vec::new(),
            // SAFETY: the library says how many there are; they stay until the next call on this stream.
            _ => unsafe { std::slice::from_raw_parts(nodes, count) }.to_vec(),
        };
        Ok(Some((id, nodes)))
    }

    /// Refuses what can't be recorded.
    pub(super) fn not_captured(&self, what: &str, stream: Stream, raw: CUstream) -> Result<(), DriverError> {
        if self.tables().captures.is_empty() || self.capture_of(raw)?.is_none() {
            return Ok(());
        }
        let reason = format!("{what} can't be recorded while stream {} is captured", stream.0);
        Err(DriverError::Capture(reason))
    }

    pub(super) fn change(
        &self,
        graph: Graph,
        launch: usize,
        arguments: &[Argument],
    ) -> Result<(), DriverError> {
        self.enter()?;
        let tables = self.tables();
        let recorded = tables.graph(graph)?;
        let node = recorded.launches.get(launch).ok_or(DriverError::BadHandle("launch of the graph"))?;
        let Node { node, kernel, shape } = node;
        packed(kernel, arguments, |pointers| {
            let parameters = CUDA_KERNEL_NODE_PARAMS {
                func: kernel.function,
                gridDimX: shape.grid[0],
                gridDimY: shape.grid[1],
                gridDimZ: shape.grid[2],
                blockDimX: shape.block[0],
                blockDimY: shape.block[1],
                blockDimZ: shape.block[2],
                sharedMemBytes: shape.shared_bytes,
                kernelParams: pointers,
                extra: std::ptr::null_mut(),
                kern: std::ptr::null_mut(),
                ctx: std::ptr::null_mut(),
            };
            // SAFETY: the node is the graph's and a launch of this kernel; `packed` has checked the arguments, which the
            // library copies.
            unsafe { cuGraphExecKernelNodeSetParams_v2(recorded.executable, *node, &raw const parameters) }
        })
    }

    pub(super) fn replay(&self, graph: Graph, stream: Stream) -> Result<(), DriverError> {
        self.enter()?;
        let mut tables = self.tables();
        let raw = tables.stream(stream)?.raw;
        let recorded = tables.graph(graph)?;
        // SAFETY: graph and stream are alive.
        let launched = unsafe { cuGraphLaunch(recorded.executable, raw) };
        let count = recorded.launches.len();
        check(launched, || format!("launching a graph of {count} kernels"))?;
        tables.stream(stream)?.last = Some(format!("a graph of {count} kernels").into());
        Ok(())
    }

    pub(super) fn forget(&self, graph: Graph) -> Result<(), DriverError> {
        self.enter()?;
        let mut tables = self.tables();
        tables.graph(graph)?;
        tables.graphs[graph.0 as usize].take().map_or(Ok(()), |recorded| destroy(&recorded))
    }
}

/// Gives a graph's memory back.
pub(super) fn destroy(recorded: &Recorded) -> Result<(), DriverError> {
    // SAFETY: both are alive, and no handle leads to them any more.
    let destroyed = unsafe { [cuGraphExecDestroy(recorded.executable), cuGraphDestroy(recorded.graph)] };
    destroyed.into_iter().try_for_each(|code| check(code, || "giving a graph back".to_owned()))
}

//! The functions of the driver API for graphs and capture, one line each: name, parameters, and the implementing method of
//! [`Graphs`](crate::Graphs). Both driver libraries declare their symbols from this list.

/// Passes the list to a macro of the caller.
#[macro_export]
macro_rules! for_each_function {
    ($emit:ident) => {
        $emit! {
            cuGraphCreate(phGraph: *mut CUgraph, flags: u32) create;
            cuGraphDestroy(hGraph: CUgraph) destroy;
            cuGraphClone(phGraphClone: *mut CUgraph, originalGraph: CUgraph) clone_graph;
            cuGraphNodeFindInClone(phNode: *mut CUgraphNode, hOriginalNode: CUgraphNode, hClonedGraph: CUgraph) find_in_clone;
            cuGraphGetNodes(hGraph: CUgraph, nodes: *mut CUgraphNode, numNodes: *mut usize) nodes;
            cuGraphGetRootNodes(hGraph: CUgraph, rootNodes: *mut CUgraphNode, numRootNodes: *mut usize) roots;
            cuGraphGetEdges(hGraph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, numEdges: *mut usize) edges_v1;
            cuGraphGetEdges_v2(hGraph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData, numEdges: *mut usize) edges;
            cuGraphAddDependencies(hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, numDependencies: usize) add_dependencies_v1;
            cuGraphAddDependencies_v2(hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edgeData: *const CUgraphEdgeData, numDependencies: usize) add_dependencies;
            cuGraphRemoveDependencies(hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, numDependencies: usize) remove_dependencies_v1;
            cuGraphRemoveDependencies_v2(hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edgeData: *const CUgraphEdgeData, numDependencies: usize) remove_dependencies;
            cuGraphDebugDotPrint(hGraph: CUgraph, path: *const c_char, flags: u32) draw;
            cuUserObjectCreate(object_out: *mut CUuserObject, ptr: *mut c_void, destroy: CUhostFn, initialRefcount: u32, flags: u32) create_object;
            cuUserObjectRetain(object: CUuserObject, count: u32) retain_object;
            cuUserObjectRelease(object: CUuserObject, count: u32) release_object;
            cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: u32, flags: u32) graph_retains;
            cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: u32) graph_releases;
            cuGraphAddKernelNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *const CUDA_KERNEL_NODE_PARAMS_v1) add_kernel_v1;
            cuGraphAddKernelNode_v2(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *const CUDA_KERNEL_NODE_PARAMS) add_kernel;
            cuGraphAddMemcpyNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, copyParams: *const CUDA_MEMCPY3D, ctx: CUcontext) add_copy;
            cuGraphAddMemsetNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, memsetParams: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext) add_fill;
            cuGraphAddHostNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *const CUDA_HOST_NODE_PARAMS) add_host;
            cuGraphAddChildGraphNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, childGraph: CUgraph) add_child;
            cuGraphAddEmptyNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize) add_empty;
            cuGraphAddEventRecordNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, event: CUevent) add_record;
            cuGraphAddEventWaitNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, event: CUevent) add_wait;
            cuGraphAddBatchMemOpNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *const CUDA_BATCH_MEM_OP_NODE_PARAMS) add_batch;
            cuGraphAddMemAllocNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *mut CUDA_MEM_ALLOC_NODE_PARAMS) add_alloc;
            cuGraphAddMemFreeNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, dptr: u64) add_free;
            cuGraphAddNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *mut CUgraphNodeParams) add_generic_v1;
            cuGraphAddNode_v2(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, nodeParams: *mut CUgraphNodeParams) add_generic;
            cuGraphDestroyNode(hNode: CUgraphNode) remove;
            cuGraphNodeGetType(hNode: CUgraphNode, type_: *mut u32) node_type;
            cuGraphNodeGetDependencies(hNode: CUgraphNode, dependencies: *mut CUgraphNode, numDependencies: *mut usize) node_dependencies_v1;
            cuGraphNodeGetDependencies_v2(hNode: CUgraphNode, dependencies: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData, numDependencies: *mut usize) node_dependencies;
            cuGraphNodeGetDependentNodes(hNode: CUgraphNode, dependentNodes: *mut CUgraphNode, numDependentNodes: *mut usize) node_dependents_v1;
            cuGraphNodeGetDependentNodes_v2(hNode: CUgraphNode, dependentNodes: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData, numDependentNodes: *mut usize) node_dependents;
            cuGraphKernelNodeGetParams(hNode: CUgraphNode, nodeParams: *mut CUDA_KERNEL_NODE_PARAMS_v1) kernel_get_v1;
            cuGraphKernelNodeGetParams_v2(hNode: CUgraphNode, nodeParams: *mut CUDA_KERNEL_NODE_PARAMS) kernel_get;
            cuGraphKernelNodeSetParams(hNode: CUgraphNode, nodeParams: *const CUDA_KERNEL_NODE_PARAMS_v1) kernel_set_v1;
            cuGraphKernelNodeSetParams_v2(hNode: CUgraphNode, nodeParams: *const CUDA_KERNEL_NODE_PARAMS) kernel_set;
            cuGraphKernelNodeGetAttribute(hNode: CUgraphNode, attr: u32, value_out: *mut CUkernelNodeAttrValue) attribute;
            cuGraphKernelNodeSetAttribute(hNode: CUgraphNode, attr: u32, value: *const CUkernelNodeAttrValue) set_attribute;
            cuGraphKernelNodeCopyAttributes(dst: CUgraphNode, src: CUgraphNode) copy_attributes;
            cuGraphMemcpyNodeGetParams(hNode: CUgraphNode, nodeParams: *mut CUDA_MEMCPY3D) copy_get;
            cuGraphMemcpyNodeSetParams(hNode: CUgraphNode, nodeParams: *const CUDA_MEMCPY3D) copy_set;
            cuGraphMemsetNodeGetParams(hNode: CUgraphNode, nodeParams: *mut CUDA_MEMSET_NODE_PARAMS) fill_get;
            cuGraphMemsetNodeSetParams(hNode: CUgraphNode, nodeParams: *const CUDA_MEMSET_NODE_PARAMS) fill_set;
            cuGraphHostNodeGetParams(hNode: CUgraphNode, nodeParams: *mut CUDA_HOST_NODE_PARAMS) host_get;
            cuGraphHostNodeSetParams(hNode: CUgraphNode, nodeParams: *const CUDA_HOST_NODE_PARAMS) host_set;
            cuGraphChildGraphNodeGetGraph(hNode: CUgraphNode, phGraph: *mut CUgraph) child;
            cuGraphEventRecordNodeGetEvent(hNode: CUgraphNode, event_out: *mut CUevent) record_get;
            cuGraphEventRecordNodeSetEvent(hNode: CUgraphNode, event: CUevent) record_set;
            cuGraphEventWaitNodeGetEvent(hNode: CUgraphNode, event_out: *mut CUevent) wait_get;
            cuGraphEventWaitNodeSetEvent(hNode: CUgraphNode, event: CUevent) wait_set;
            cuGraphBatchMemOpNodeGetParams(hNode: CUgraphNode, nodeParams_out: *mut CUDA_BATCH_MEM_OP_NODE_PARAMS) batch_get;
            cuGraphBatchMemOpNodeSetParams(hNode: CUgraphNode, nodeParams: *const CUDA_BATCH_MEM_OP_NODE_PARAMS) batch_set;
            cuGraphMemAllocNodeGetParams(hNode: CUgraphNode, params_out: *mut CUDA_MEM_ALLOC_NODE_PARAMS) alloc_get;
            cuGraphMemFreeNodeGetParams(hNode: CUgraphNode, dptr_out: *mut u64) free_get;
            cuGraphNodeSetParams(hNode: CUgraphNode, nodeParams: *mut CUgraphNodeParams) set_generic;
            cuGraphConditionalHandleCreate(pHandle_out: *mut u64, hGraph: CUgraph, ctx: CUcontext, defaultLaunchValue: u32, flags: u32) create_condition;
            cuGraphInstantiate(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, phErrorNode: *mut CUgraphNode, logBuffer: *mut c_char, bufferSize: usize) instantiate;
            cuGraphInstantiate_v2(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, phErrorNode: *mut CUgraphNode, logBuffer: *mut c_char, bufferSize: usize) instantiate;
            cuGraphInstantiateWithFlags(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, flags: u64) instantiate_with_flags;
            cuGraphInstantiateWithParams(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, instantiateParams: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) instantiate_with_params;
            cuGraphExecGetFlags(hGraphExec: CUgraphExec, flags: *mut u64) exec_flags;
            cuGraphUpload(hGraphExec: CUgraphExec, hStream: CUstream) upload;
            cuGraphLaunch(hGraphExec: CUgraphExec, hStream: CUstream) launch;
            cuGraphExecDestroy(hGraphExec: CUgraphExec) destroy_exec;
            cuGraphNodeSetEnabled(hGraphExec: CUgraphExec, hNode: CUgraphNode, isEnabled: u32) set_enabled;
            cuGraphNodeGetEnabled(hGraphExec: CUgraphExec, hNode: CUgraphNode, isEnabled: *mut u32) enabled;
            cuGraphExecKernelNodeSetParams(hGraphExec: CUgraphExec, hNode: CUgraphNode, nodeParams: *const CUDA_KERNEL_NODE_PARAMS_v1) exec_kernel_v1;
            cuGraphExecKernelNodeSetParams_v2(hGraphExec: CUgraphExec, hNode: CUgraphNode, nodeParams: *const CUDA_KERNEL_NODE_PARAMS) exec_kernel;
            cuGraphExecMemcpyNodeSetParams(hGraphExec: CUgraphExec, hNode: CUgraphNode, copyParams: *const CUDA_MEMCPY3D, ctx: CUcontext) exec_copy;
            cuGraphExecMemsetNodeSetParams(hGraphExec: CUgraphExec, hNode: CUgraphNode, memsetParams: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext) exec_fill;
            cuGraphExecHostNodeSetParams(hGraphExec: CUgraphExec, hNode: CUgraphNode, nodeParams: *const CUDA_HOST_NODE_PARAMS) exec_host;
            cuGraphExecChildGraphNodeSetParams(hGraphExec: CUgraphExec, hNode: CUgraphNode, childGraph: CUgraph) exec_child;
            cuGraphExecEventRecordNodeSetEvent(hGraphExec: CUgraphExec, hNode: CUgraphNode, event: CUevent) exec_record;
            cuGraphExecEventWaitNodeSetEvent(hGraphExec: CUgraphExec, hNode: CUgraphNode, event: CUevent) exec_wait;
            cuGraphExecBatchMemOpNodeSetParams(hGraphExec: CUgraphExec, hNode: CUgraphNode, nodeParams: *const CUDA_BATCH_MEM_OP_NODE_PARAMS) exec_batch;
            cuGraphExecNodeSetParams(hGraphExec: CUgraphExec, hNode: CUgraphNode, nodeParams: *mut CUgraphNodeParams) exec_set;
            cuGraphExecUpdate(hGraphExec: CUgraphExec, hGraph: CUgraph, hErrorNode_out: *mut CUgraphNode, updateResult_out: *mut u32) update_v1;
            cuGraphExecUpdate_v2(hGraphExec: CUgraphExec, hGraph: CUgraph, resultInfo: *mut CUgraphExecUpdateResultInfo) update;
            cuDeviceGetGraphMemAttribute(device: i32, attr: u32, value: *mut c_void) memory_attribute;
            cuDeviceSetGraphMemAttribute(device: i32, attr: u32, value: *mut c_void) set_memory_attribute;
            cuDeviceGraphMemTrim(device: i32) trim_memory;
            cuStreamBeginCapture(hStream: CUstream) begin_capture_v1;
            cuStreamBeginCapture_v2(hStream: CUstream, mode: u32) begin_capture;
            cuStreamBeginCaptureToGraph(hStream: CUstream, hGraph: CUgraph, dependencies: *const CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, mode: u32) begin_capture_to;
            cuStreamEndCapture(hStream: CUstream, phGraph: *mut CUgraph) end_capture;
            cuStreamIsCapturing(hStream: CUstream, captureStatus: *mut u32) is_capturing;
            cuThreadExchangeStreamCaptureMode(mode: *mut u32) exchange_capture_mode;
            cuStreamGetCaptureInfo(hStream: CUstream, captureStatus_out: *mut u32, id_out: *mut u64) capture_info_v1;
            cuStreamGetCaptureInfo_v2(hStream: CUstream, captureStatus_out: *mut u32, id_out: *mut u64, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, numDependencies_out: *mut usize) capture_info_v2;
            cuStreamGetCaptureInfo_v3(hStream: CUstream, captureStatus_out: *mut u32, id_out: *mut u64, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, edgeData_out: *mut *const CUgraphEdgeData, numDependencies_out: *mut usize) capture_info;
            cuStreamUpdateCaptureDependencies(hStream: CUstream, dependencies: *mut CUgraphNode, numDependencies: usize, flags: u32) update_dependencies_v1;
            cuStreamUpdateCaptureDependencies_v2(hStream: CUstream, dependencies: *mut CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, flags: u32) update_dependencies;
        }
    };
}

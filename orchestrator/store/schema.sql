CREATE TABLE store_info (         -- one fact about this file itself
    key TEXT PRIMARY KEY,         -- written_by, created_at; -; NULL: never
    value TEXT                    -- the fact; -; NULL: never
) STRICT;
CREATE TABLE sweep (              -- one 'perfctl PROFILER --batches ...' call, or one ingest
    id INTEGER PRIMARY KEY,       -- number of the sweep; -; NULL: never
    name TEXT NOT NULL,           -- name of its folder, or of the ingest; -; NULL: never
    kind TEXT NOT NULL,           -- sweep or ingest; -; NULL: never
    created_at TEXT NOT NULL,     -- time of the first request; UTC, ISO 8601; NULL: never
    command TEXT,                 -- the command line, ready to paste; -; NULL: called from Python
    host TEXT                     -- host name; -; NULL: not known
) STRICT;
CREATE TABLE device (             -- one GPU or CPU of a run
    id INTEGER PRIMARY KEY,       -- number of the device; -; NULL: never
    name TEXT,                    -- name in the driver or in /proc/cpuinfo; -; NULL: not stated
    kind TEXT NOT NULL,           -- gpu or cpu; -; NULL: never
    compute_capability TEXT,      -- CUDA compute capability, as in 9.0; -; NULL: not known, or a CPU
    sm_count INTEGER,             -- streaming multiprocessors; count; NULL: not known, or a CPU
    memory_bytes INTEGER,         -- memory of the device; byte; NULL: not known
    memory_bandwidth_bps INTEGER, -- peak memory bandwidth as the report states it; byte/s; NULL: not stated
    clock_hz INTEGER,             -- peak core clock as the report states it; Hz; NULL: not stated
    driver_version TEXT           -- driver; -; NULL: not stated
) STRICT;
CREATE TABLE run (                -- one profiled process at one batch size
    id INTEGER PRIMARY KEY,       -- number of the run; -; NULL: never
    sweep_id INTEGER NOT NULL REFERENCES sweep(id) ON DELETE CASCADE, -- the sweep it belongs to; -; NULL: never
    profiler TEXT NOT NULL,       -- nsys, ncu, dlprof, torch, nvidia-smi, dcgm, nvprof, none; -; NULL: never
    profiler_version TEXT,        -- version of that tool; -; NULL: not stated
    workload TEXT,                -- name of the workload or script; -; NULL: not stated in the file or the options
    variant TEXT,                 -- the workload's own options that are not at their default; -; NULL: all are, or not known
    batch_size INTEGER,           -- samples per step; count; NULL: not stated in the file or the options
    mode TEXT,                    -- train or infer; -; NULL: not known
    precision TEXT,               -- fp32, tf32, bf16, fp16; -; NULL: not known
    device_id INTEGER REFERENCES device(id), -- the device that did the work; -; NULL: not known
    status TEXT NOT NULL,         -- ok, failed, partial; -; NULL: never
    exit_code INTEGER,            -- of the profiled command; -; NULL: it was ended by perfctl, or not run by it
    reason TEXT,                  -- why the status is not ok; -; NULL: the status is ok
    started_at TEXT,              -- start of the process or capture; UTC, ISO 8601; NULL: not known
    duration_ns INTEGER,          -- of the process or capture; ns; NULL: not known
    artifact TEXT,                -- report file or folder, relative to the folder of the database if inside; path; NULL: none was left
    artifact_sha256 TEXT,         -- of that file, or of a folder's files in order; hex; NULL: none was left
    origin TEXT NOT NULL,         -- measured, ingested, recorded (replayed) or synthetic; -; NULL: never
    form TEXT,                    -- the format that perfctl recognized; -; NULL: nothing was read
    command TEXT,                 -- argument list of the profiled process; JSON; NULL: not known
    clock TEXT,                   -- timer of the steps, device_events or monotonic; -; NULL: no steps were timed
    ingested_at TEXT NOT NULL,    -- when the row was written; UTC, ISO 8601; NULL: never
    rank INTEGER,                 -- rank of the process among those that worked together, from 0; -; NULL: not known
    world_size INTEGER,           -- processes that worked together; count; NULL: not known
    host TEXT,                    -- host name of the machine that the process ran on; -; NULL: not known
    phase TEXT,                   -- train, prefill, decode, infer; -; NULL: not known, or more than one
    effective_batch INTEGER       -- samples per step, with all batches of gradient accumulation; count; NULL: not known
) STRICT;
CREATE INDEX run_by_artifact ON run(artifact_sha256);
CREATE INDEX run_by_sweep ON run(sweep_id, workload, batch_size);
CREATE TABLE run_device (         -- one device that a run could use
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    device_index INTEGER NOT NULL, -- CUDA ordinal in that run; -; NULL: never
    device_id INTEGER NOT NULL REFERENCES device(id), -- the device; -; NULL: never
    PRIMARY KEY (run_id, device_id, device_index)
) STRICT;
CREATE TABLE environment (        -- one fact about a run's software and settings, never its environment variables
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    key TEXT NOT NULL,            -- torch, cuda, cudnn, tf32_conv, ...; -; NULL: never
    value TEXT,                   -- the fact; -; NULL: not known
    PRIMARY KEY (run_id, key)
) STRICT;
CREATE TABLE layer_call (         -- estimated work of one layer or functional operation in one direction, for one step
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    layer TEXT NOT NULL,          -- dotted module path; -; NULL: never
    kind TEXT NOT NULL,           -- class of the module, or name of the operation; -; NULL: never
    direction TEXT NOT NULL,      -- forward, grad_input, grad_weight, grad_bias, backward, optimizer; -; NULL: never
    macs INTEGER,                 -- multiply-adds; count; NULL: there is no formula for it
    flops INTEGER,                -- 2 x multiply-adds; FLOP; NULL: there is no formula for it
    parameters INTEGER,           -- elements of its own parameters; count; NULL: not known
    read_bytes INTEGER,           -- bytes that it must read at least; byte; NULL: not known
    write_bytes INTEGER,          -- bytes that it must write at least; byte; NULL: not known
    output_elements INTEGER,      -- elements of its outputs; count; NULL: not known
    formula TEXT,                 -- the formula with the numbers put in; -; NULL: there is none
    elementwise_flops INTEGER,    -- adds, comparisons and the like that are no multiply-adds, kept apart; FLOP; NULL: not known
    calls INTEGER NOT NULL,       -- how often it ran in the step, all included above; count; NULL: never
    position INTEGER              -- order of first call in the step; -; NULL: not known
) STRICT;
CREATE INDEX layer_call_by_run ON layer_call(run_id);
CREATE TABLE range (              -- one NVTX range, record_function span or step annotation
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- its text; -; NULL: never
    domain TEXT,                  -- NVTX domain; -; NULL: the default domain
    start_ns INTEGER NOT NULL,    -- on the report's clock, may be negative; ns; NULL: never
    duration_ns INTEGER,          -- duration; ns; NULL: it never ended
    thread INTEGER,               -- thread that opened it; -; NULL: not known
    depth INTEGER,                -- ranges of its thread around it; count; NULL: not a nested kind
    parent INTEGER,               -- id of the range directly around it; -; NULL: none
    kind TEXT NOT NULL,           -- push_pop, start_end, mark; -; NULL: never
    layer TEXT,                   -- dotted module path; -; NULL: not one of perfctl's layer ranges
    direction TEXT,               -- of that layer; -; NULL: not one of perfctl's layer ranges
    step INTEGER,                 -- measured step around it; -; NULL: outside of steps
    phase TEXT,                   -- data, forward, backward, optimizer, inference; -; NULL: outside of phases
    gpu_ns INTEGER,               -- of the kernels, copies and memsets launched inside it, added up (duration_ns is time on the host); ns; NULL: not known
    gpu_span_ns INTEGER           -- from the start of the first of these to the end of the last; ns; NULL: none were launched inside it, or not known
) STRICT;
CREATE INDEX range_by_run ON range(run_id);
CREATE TABLE kernel_name (        -- one kernel of a run, however often it was launched; read it through kernel
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- demangled name; -; NULL: never
    short_name TEXT,              -- without template arguments and parameters; -; NULL: the report has no such form
    family TEXT                   -- algorithm family, gemm, conv, winograd, ...; -; NULL: the name was not recognized
) STRICT;
CREATE INDEX kernel_name_by_run ON kernel_name(run_id);
CREATE TABLE kernel_layer (       -- one layer in one direction that launched kernels of a run; read it through kernel
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    layer TEXT,                   -- dotted module path; -; NULL: not attributed
    direction TEXT,               -- of that layer; -; NULL: not attributed
    layer_source TEXT             -- how the layer was found, range, operation or guessed; -; NULL: not attributed
) STRICT;
CREATE INDEX kernel_layer_by_run ON kernel_layer(run_id);
CREATE TABLE kernel_launch (      -- one launch, its name and layer apart; read it through kernel
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name_id INTEGER NOT NULL,     -- id of its kernel_name; -; NULL: never
    launch INTEGER NOT NULL,      -- order in the report, from 0; -; NULL: never
    layer_id INTEGER,             -- id of its kernel_layer; -; NULL: not attributed
    step INTEGER,                 -- measured step; -; NULL: not known
    range_id INTEGER,             -- innermost range around the launch call; -; NULL: none
    device_index INTEGER,         -- CUDA ordinal; -; NULL: not known
    stream INTEGER,               -- CUDA stream; -; NULL: not known
    grid_x INTEGER,               -- blocks in x; count; NULL: not known
    grid_y INTEGER,               -- blocks in y; count; NULL: not known
    grid_z INTEGER,               -- blocks in z; count; NULL: not known
    block_x INTEGER,              -- threads in x; count; NULL: not known
    block_y INTEGER,              -- threads in y; count; NULL: not known
    block_z INTEGER,              -- threads in z; count; NULL: not known
    registers INTEGER,            -- registers per thread; count; NULL: not known
    static_shared_bytes INTEGER,  -- static shared memory per block; byte; NULL: not known
    dynamic_shared_bytes INTEGER, -- dynamic shared memory per block; byte; NULL: not known
    start_ns INTEGER,             -- on the report's clock; ns; NULL: not known
    duration_ns ANY,              -- under ncu at locked clocks and with cold caches; ns; NULL: not collected
    process INTEGER,              -- id of the process that launched it; -; NULL: not known
    context INTEGER,              -- CUDA context; -; NULL: not known
    graph_id INTEGER,             -- CUDA graph that launched it; -; NULL: no graph did, or not known
    graph_node_id INTEGER,        -- its node in that graph; -; NULL: no graph launched it, or not known
    correlation INTEGER,          -- the report's number that joins it to its launch call; -; NULL: not known
    cluster_x INTEGER,            -- blocks of a cluster in x; count; NULL: launched without clusters, or not known
    cluster_y INTEGER,            -- blocks of a cluster in y; count; NULL: launched without clusters, or not known
    cluster_z INTEGER,            -- blocks of a cluster in z; count; NULL: launched without clusters, or not known
    occupancy REAL,               -- share of a multiprocessor's warp slots in use, as the report states it; 0..1; NULL: not stated
    source TEXT                   -- of its executed instructions, counted or derived; -; NULL: neither
) STRICT;
CREATE INDEX kernel_launch_by_run ON kernel_launch(run_id);
CREATE VIEW kernel AS             -- one launch
SELECT
    l.id,                         -- number of the row; -; NULL: never
    l.run_id,                     -- the run; -; NULL: never
    l.launch,                     -- order in the report, from 0; -; NULL: never
    n.name,                       -- demangled name; -; NULL: never
    n.short_name,                 -- without template arguments and parameters; -; NULL: the report has no such form
    p.layer,                      -- dotted module path that launched it; -; NULL: not attributed
    p.direction,                  -- of that layer; -; NULL: not attributed
    l.step,                       -- measured step; -; NULL: not known
    p.layer_source,               -- how the layer was found, range, operation, capture (of the graph), origins (of a fused kernel), shared (between several, in kernel_part) or guessed; -; NULL: not attributed
    l.range_id,                   -- innermost range around the launch call; -; NULL: none
    l.device_index,               -- CUDA ordinal; -; NULL: not known
    l.stream,                     -- CUDA stream; -; NULL: not known
    l.grid_x,                     -- blocks in x; count; NULL: not known
    l.grid_y,                     -- blocks in y; count; NULL: not known
    l.grid_z,                     -- blocks in z; count; NULL: not known
    l.block_x,                    -- threads in x; count; NULL: not known
    l.block_y,                    -- threads in y; count; NULL: not known
    l.block_z,                    -- threads in z; count; NULL: not known
    l.registers,                  -- registers per thread; count; NULL: not known
    l.static_shared_bytes,        -- static shared memory per block; byte; NULL: not known
    l.dynamic_shared_bytes,       -- dynamic shared memory per block; byte; NULL: not known
    l.start_ns,                   -- on the report's clock; ns; NULL: not known
    l.duration_ns,                -- under ncu at locked clocks and with cold caches; ns; NULL: not collected
    n.family,                     -- algorithm family, gemm, conv, winograd, ...; -; NULL: the name was not recognized
    l.process,                    -- id of the process that launched it; -; NULL: not known
    l.context,                    -- CUDA context; -; NULL: not known
    l.graph_id,                   -- CUDA graph that launched it; -; NULL: no graph did, or not known
    l.graph_node_id,              -- its node in that graph; -; NULL: no graph launched it, or not known
    l.correlation,                -- the report's number that joins it to its launch call; -; NULL: not known
    l.cluster_x,                  -- blocks of a cluster in x; count; NULL: launched without clusters, or not known
    l.cluster_y,                  -- blocks of a cluster in y; count; NULL: launched without clusters, or not known
    l.cluster_z,                  -- blocks of a cluster in z; count; NULL: launched without clusters, or not known
    l.occupancy,                  -- share of a multiprocessor's warp slots in use, as the report states it; 0..1; NULL: not stated
    l.source                      -- of its executed instructions, counted or derived; -; NULL: neither
FROM kernel_launch AS l LEFT JOIN kernel_name AS n ON n.id = l.name_id LEFT JOIN kernel_layer AS p ON p.id = l.layer_id;
CREATE TABLE metric (             -- one metric of a run, for however many launches; read it through counter
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- name of the metric; -; NULL: never
    unit TEXT,                    -- base unit; -; NULL: a plain count or ratio
    section TEXT                  -- section or body item that printed it; -; NULL: not stated
) STRICT;
CREATE INDEX metric_by_run ON metric(run_id);
CREATE TABLE metric_value (       -- one metric of one launch, its name apart; read it through counter
    id INTEGER PRIMARY KEY,       -- number of the row, in the order of the report; -; NULL: never
    kernel_id INTEGER NOT NULL REFERENCES kernel_launch(id) ON DELETE CASCADE, -- the launch; -; NULL: never
    metric_id INTEGER NOT NULL,   -- id of its metric; -; NULL: never
    value ANY,                    -- in the metric's unit; base units; NULL: printed as n/a, or as text
    text TEXT                     -- a value that is not a number; -; NULL: value has a number, or there was none
) STRICT;
CREATE INDEX metric_value_by_kernel ON metric_value(kernel_id);
CREATE VIEW counter AS            -- one metric of one launch
SELECT
    v.kernel_id,                  -- the launch; -; NULL: never
    m.name,                       -- name of the metric; -; NULL: never
    v.value,                      -- in the unit of the column unit; base units; NULL: printed as n/a, or as text
    m.unit,                       -- base unit; -; NULL: a plain count or ratio
    m.section,                    -- section or body item that printed it; -; NULL: not stated
    v.text,                       -- a value that is not a number; -; NULL: value has a number, or there was none
    v.id AS rowid                 -- number of the row, in the order of the report; -; NULL: never
FROM metric_value AS v LEFT JOIN metric AS m ON m.id = v.metric_id;
CREATE TABLE copy (               -- one memcpy or memset
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    kind TEXT NOT NULL,           -- HtoD, DtoH, DtoD, PtoP, memset, ...; -; NULL: never
    bytes INTEGER,                -- size; byte; NULL: not stated
    start_ns INTEGER,             -- on the report's clock; ns; NULL: not stated
    duration_ns INTEGER,          -- duration; ns; NULL: not stated
    layer TEXT,                   -- dotted module path; -; NULL: not attributed
    device_index INTEGER,         -- CUDA ordinal; -; NULL: not known
    stream INTEGER,               -- CUDA stream; -; NULL: not known
    source_memory TEXT,           -- memory that it reads, pageable, pinned, device or managed; -; NULL: not stated, or a memset
    destination_memory TEXT,      -- memory that it writes, pageable, pinned, device or managed; -; NULL: not stated
    peer_device INTEGER           -- CUDA ordinal of the other GPU; -; NULL: not between two GPUs, or not stated
) STRICT;
CREATE INDEX copy_by_run ON copy(run_id);
CREATE TABLE operation (          -- one framework operation of one layer and direction, summed over a run
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- name of the operation; -; NULL: never
    category TEXT,                -- the report's category; -; NULL: not stated
    calls INTEGER NOT NULL,       -- how often; count; NULL: never
    cpu_ns INTEGER,               -- on the host, children included; ns; NULL: not collected
    self_cpu_ns INTEGER,          -- on the host, children excluded; ns; NULL: not collected
    device_ns INTEGER,            -- of the kernels it launched; ns; NULL: not collected
    memory_bytes INTEGER,         -- net allocation inside it; byte; NULL: memory was not profiled
    flops INTEGER,                -- as the report states; FLOP; NULL: not stated
    layer TEXT,                   -- dotted module path; -; NULL: not attributed
    direction TEXT                -- of that layer; -; NULL: not attributed
) STRICT;
CREATE INDEX operation_by_run ON operation(run_id);
CREATE TABLE sample (             -- one sample of a device
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    at_ns INTEGER NOT NULL,       -- when; ns; NULL: never
    gpu_utilisation REAL,         -- share of the sampling period with a kernel running; 0..1; NULL: not collected
    memory_used_bytes INTEGER,    -- used on the device by everybody; byte; NULL: not collected
    memory_total_bytes INTEGER,   -- of the device; byte; NULL: not collected
    power_w REAL,                 -- drawn; W; NULL: not collected
    temperature_c REAL,           -- of the chip; degree Celsius; NULL: not collected
    sm_clock_hz INTEGER,          -- current; Hz; NULL: not collected
    device_index INTEGER,         -- ordinal; -; NULL: not stated
    memory_clock_hz INTEGER,      -- current; Hz; NULL: not collected
    energy_j REAL,                -- since the driver was loaded, so a run has a difference; J; NULL: not collected
    throttle_reasons TEXT,        -- reasons for lower clocks, joined by +, or none; -; NULL: not collected
    process_memory_bytes INTEGER, -- on the device, by the run's processes; byte; NULL: not reported
    process_utilisation REAL,     -- share of gpu_utilisation by these processes; 0..1; NULL: not reported by the driver
    host_cpu REAL,                -- cores that the run's processes used since the last sample; count; NULL: a sample of a GPU
    host_memory_bytes INTEGER,    -- resident memory, shared pages counted once; byte; NULL: a sample of a GPU
    allocated_bytes INTEGER,      -- in tensors, by PyTorch's allocator of the device; byte; NULL: not recorded
    reserved_bytes INTEGER        -- taken from the device by that allocator; byte; NULL: not recorded
) STRICT;
CREATE INDEX sample_by_run ON sample(run_id);
CREATE TABLE memory (             -- one memory figure
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    moment TEXT NOT NULL,         -- when it was recorded, before, after or peak; -; NULL: never
    quantity TEXT NOT NULL,       -- allocated, reserved, host_available, host_resident, device_free, device_total; -; NULL: never
    bytes INTEGER                 -- size; byte; NULL: not collected
) STRICT;
CREATE INDEX memory_by_run ON memory(run_id);
CREATE TABLE step (               -- one measured iteration, or one phase of it
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    number INTEGER NOT NULL,      -- from 0; -; NULL: never
    phase TEXT NOT NULL,          -- step, data, forward, backward, optimizer, inference, epoch, test; -; NULL: never
    start_ns INTEGER,             -- on the run's clock; ns; NULL: not timed
    duration_ns INTEGER,          -- duration by the timer in run.clock; ns; NULL: not timed
    loss REAL,                    -- mean over the samples; -; NULL: not computed
    accuracy REAL                 -- share of right answers; 0..1; NULL: not computed
) STRICT;
CREATE INDEX step_by_run ON step(run_id);
CREATE TABLE summary (            -- one value that a report states directly
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- as the report labels it; -; NULL: never
    value REAL,                   -- the figure; in the unit of the column unit; NULL: no number
    unit TEXT,                    -- its unit; -; NULL: none
    text TEXT                     -- a value that is not a number; -; NULL: value has a number
) STRICT;
CREATE INDEX summary_by_run ON summary(run_id);
CREATE TABLE gap (                -- why a figure is NULL
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    quantity TEXT NOT NULL,       -- table, column or metric; -; NULL: never
    state TEXT NOT NULL,          -- not_collected, not_available, unreadable, ambiguous; -; NULL: never
    reason TEXT NOT NULL,         -- in words; -; NULL: never
    scope TEXT,                   -- the layer or kernel it concerns; -; NULL: the complete run
    CHECK (state IN ('not_collected', 'not_available', 'unreadable', 'ambiguous'))
) STRICT;
CREATE INDEX gap_by_run ON gap(run_id);
CREATE TABLE diagnostic (         -- something the tool itself said about the capture
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    severity TEXT NOT NULL,       -- info, warning, error; -; NULL: never
    source TEXT NOT NULL,         -- tool that reported it; -; NULL: never
    text TEXT NOT NULL            -- the message; -; NULL: never
) STRICT;
CREATE INDEX diagnostic_by_run ON diagnostic(run_id);
CREATE TABLE op_shape (           -- shapes of one operation in a step; estimates start from them
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    position INTEGER NOT NULL,    -- order of first call; -; NULL: never
    layer TEXT NOT NULL,          -- dotted module path, empty outside of modules; -; NULL: never
    op TEXT NOT NULL,             -- dispatcher name; -; NULL: never
    direction TEXT NOT NULL,      -- forward, backward or optimizer; -; NULL: never
    record TEXT NOT NULL          -- kind, shapes, dtypes, attributes, parameters, calls; JSON; NULL: never
) STRICT;
CREATE INDEX op_shape_by_run ON op_shape(run_id);
CREATE TABLE layer_time (         -- time of one layer in one direction, in separate steps (perfctl bench)
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    layer TEXT NOT NULL,          -- dotted module path, (model) for the model between its layers; -; NULL: never
    kind TEXT NOT NULL,           -- class of the module; -; NULL: never
    direction TEXT NOT NULL,      -- forward, backward, grad_input, grad_weight, recompute; -; NULL: never
    duration_ns INTEGER NOT NULL, -- median over the steps, without layers within it; ns; NULL: never
    low_ns INTEGER NOT NULL,      -- of the fastest step; ns; NULL: never
    high_ns INTEGER NOT NULL,     -- of the slowest step; ns; NULL: never
    steps INTEGER NOT NULL        -- how many steps; count; NULL: never
) STRICT;
CREATE INDEX layer_time_by_run ON layer_time(run_id);
CREATE TABLE feature (            -- one estimated value of a step, which perfctl bench relates to times
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- the quantity, macs, macs:Conv2d, bytes, layers, parameters, ...; -; NULL: never
    value REAL NOT NULL,          -- the figure; in the unit of the column unit; NULL: never
    unit TEXT                     -- its unit; -; NULL: a plain count
) STRICT;
CREATE INDEX feature_by_run ON feature(run_id);
CREATE TABLE api_call (           -- all calls of one function of a runtime, driver or operating system in a run
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    domain TEXT NOT NULL,         -- cuda, hip, osrt, nvtx, mpi, nccl, cudnn, cublas, python (functions), sync (waiting on the GPU, by kind); -; NULL: never
    name TEXT NOT NULL,           -- name of the function; -; NULL: never
    calls INTEGER,                -- how often; count; NULL: not stated
    total_ns INTEGER,             -- of all calls together, on the host; ns; NULL: not stated
    min_ns INTEGER,               -- of the shortest call; ns; NULL: not stated
    max_ns INTEGER                -- of the longest call; ns; NULL: not stated
) STRICT;
CREATE INDEX api_call_by_run ON api_call(run_id);
CREATE TABLE thread (             -- one thread of the host that made calls or ranges, and its name
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    process INTEGER NOT NULL,     -- id of its process; -; NULL: never
    thread INTEGER NOT NULL,      -- its own id, as in range.thread; -; NULL: never
    name TEXT NOT NULL            -- its name; -; NULL: never
) STRICT;
CREATE INDEX thread_by_run ON thread(run_id);
CREATE TABLE stack (              -- one call stack of a run; op_call.stack_id refers to it
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    text TEXT NOT NULL            -- frames as the report has them, one per line; -; NULL: never
) STRICT;
CREATE INDEX stack_by_run ON stack(run_id);
CREATE TABLE op_signature (       -- common values of many instances of an operator; read it through op_call
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- name of the operator; -; NULL: never
    shapes TEXT,                  -- shapes of its inputs; JSON; NULL: not recorded
    dtypes TEXT,                  -- types of its inputs; JSON; NULL: not recorded
    layer TEXT,                   -- dotted module path; -; NULL: not attributed
    direction TEXT                -- of that layer; -; NULL: not attributed
) STRICT;
CREATE INDEX op_signature_by_run ON op_signature(run_id);
CREATE TABLE op_instance (        -- one framework operator that ran once, its name apart; read it through op_call
    id INTEGER PRIMARY KEY,       -- number of the row, in the order of the report; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    signature_id INTEGER NOT NULL, -- id of its op_signature; -; NULL: never
    start_ns INTEGER,             -- on the report's clock; ns; NULL: not stated
    duration_ns INTEGER,          -- on the host, operators inside it included; ns; NULL: not stated
    device_ns INTEGER,            -- of the kernels launched inside it; ns; NULL: not known
    step INTEGER,                 -- measured step; -; NULL: not known
    thread INTEGER,               -- thread that ran it; -; NULL: not known
    stack_id INTEGER              -- id of its stack; -; NULL: stacks were not recorded
) STRICT;
CREATE INDEX op_instance_by_run ON op_instance(run_id);
CREATE VIEW op_call AS            -- one framework operator that ran once
SELECT
    i.run_id,                     -- the run; -; NULL: never
    s.name,                       -- name of the operator; -; NULL: never
    i.start_ns,                   -- on the report's clock; ns; NULL: not stated
    i.duration_ns,                -- on the host, operators inside it included; ns; NULL: not stated
    i.device_ns,                  -- of the kernels launched inside it; ns; NULL: not known
    s.shapes,                     -- shapes of its inputs; JSON; NULL: not recorded
    s.dtypes,                     -- types of its inputs; JSON; NULL: not recorded
    s.layer,                      -- dotted module path; -; NULL: not attributed
    s.direction,                  -- of that layer; -; NULL: not attributed
    i.step,                       -- measured step; -; NULL: not known
    i.thread,                     -- thread that ran it; -; NULL: not known
    i.stack_id,                   -- id of its stack; -; NULL: stacks were not recorded
    i.id AS rowid                 -- number of the row, in the order of the report; -; NULL: never
FROM op_instance AS i LEFT JOIN op_signature AS s ON s.id = i.signature_id;
CREATE TABLE collective (         -- one collective of one rank, such as an all-reduce
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- all_reduce, all_gather, ..., or the report's own word; -; NULL: never
    [group] TEXT,                 -- process group; -; NULL: not stated
    group_size INTEGER,           -- ranks in that group; count; NULL: not stated
    bytes INTEGER,                -- size of this rank's input; byte; NULL: not stated
    dtype TEXT,                   -- type of its elements; -; NULL: not stated
    start_ns INTEGER,             -- on the report's clock; ns; NULL: not stated
    duration_ns INTEGER,          -- on the device, waiting for other ranks included; ns; NULL: not stated
    exposed_ns INTEGER            -- part of the duration in which this rank's GPU ran no other kernel; ns; NULL: not known
) STRICT;
CREATE INDEX collective_by_run ON collective(run_id);
CREATE TABLE compiled_kernel (    -- all calls of one kernel that a compiler (Inductor) wrote
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- name of the kernel, not unique; -; NULL: never
    file TEXT,                    -- source that the compiler wrote, on the machine of the run; -; NULL: not stated
    hash TEXT,                    -- of that source; -; NULL: not stated
    backend TEXT,                 -- triton, ...; -; NULL: not stated
    origins TEXT,                 -- operators that were fused, as the name has them; -; NULL: it names none
    calls INTEGER,                -- how often; count; NULL: not known
    device_ns INTEGER,            -- of its launches together; ns; NULL: not known
    elements INTEGER,             -- elements that one call computes, with those of a reduction; count; NULL: not stated
    reduced INTEGER,              -- elements that are reduced into one result; count; NULL: no reduction, or not stated
    argument_bytes INTEGER,       -- of all tensors that one call is given, once each; byte; NULL: shapes were not recorded
    flops INTEGER,                -- of the product in a template (triton_tem), one call, from shapes, 1 multiply-add is 2; FLOP; NULL: no template, or not known (gap)
    stated_flops INTEGER,         -- of products in one call, as Inductor states them (kernel_flop); FLOP; NULL: not stated
    stated_bytes INTEGER,         -- read and written by one call, as Inductor states it (kernel_num_gb); byte; NULL: not stated
    elementwise INTEGER           -- operators that the name lists and that compute, once on each element, an estimate, in no total; count; NULL: it lists others, or elements are not known
) STRICT;
CREATE INDEX compiled_kernel_by_run ON compiled_kernel(run_id);
CREATE TABLE kernel_part (        -- work of a fused kernel for one of several layers; kernel.layer_source of it is shared
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    launch INTEGER NOT NULL,      -- kernel.launch in the same run; -; NULL: never
    layer TEXT,                   -- dotted module path, inferred from source lines; -; NULL: the model itself, outside of its layers
    direction TEXT,               -- of that layer; -; NULL: of no layer
    origins INTEGER NOT NULL,     -- operations of the program that were fused into the kernel for it; count; NULL: never
    share REAL NOT NULL           -- of the kernel's time and counts, by operations (one per element, and all FLOPs of a product), an estimate; 0..1; NULL: never
) STRICT;
CREATE INDEX kernel_part_by_run ON kernel_part(run_id);
CREATE TABLE advice (             -- result of one rule of a profiler, for a launch or a report
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    launch INTEGER,               -- kernel.launch in the same run; -; NULL: it concerns the complete report
    rule TEXT NOT NULL,           -- name of the rule; -; NULL: never
    kind TEXT,                    -- the profiler's kind of result, such as OPT, INF, WRN; -; NULL: not stated
    text TEXT,                    -- the result in the profiler's words; -; NULL: not stated
    estimated_speedup REAL,       -- share of the time that following it saves, as the profiler estimates; 0..1; NULL: not stated
    speedup_scope TEXT            -- base of the share, global (the launch) or local (one unit's work); -; NULL: not stated
) STRICT;
CREATE INDEX advice_by_run ON advice(run_id);
CREATE TABLE derived_rule (       -- how instructions of launches were derived; read it through derived_count
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    instruction TEXT NOT NULL,    -- FADD, FMUL, FFMA, HMMA, or tensor FLOP if the kernel name does not define an HMMA; -; NULL: never
    rule TEXT NOT NULL,           -- the arithmetic with the numbers put in; -; NULL: never
    verified_error REAL           -- largest relative error in 95% of measured launches; 0.01 is 1%; NULL: never compared
) STRICT;
CREATE INDEX derived_rule_by_run ON derived_rule(run_id);
CREATE TABLE derived_value (      -- one derived count of one launch, its rule apart; read it through derived_count
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    kernel_id INTEGER NOT NULL REFERENCES kernel_launch(id) ON DELETE CASCADE, -- the launch; -; NULL: never
    rule_id INTEGER NOT NULL,     -- id of its derived_rule; -; NULL: never
    value ANY                     -- executed FADD, FMUL, FFMA of all threads, HMMA of all warps; count, FLOP for tensor FLOP; NULL: the rule gives none
) STRICT;
CREATE INDEX derived_value_by_kernel ON derived_value(kernel_id);
CREATE VIEW derived_count AS      -- executed instructions of one kind in one launch that no counter measured
SELECT
    v.kernel_id,                  -- the launch; -; NULL: never
    r.instruction,                -- FADD, FMUL, FFMA, HMMA, or tensor FLOP if the kernel name does not define an HMMA; -; NULL: never
    v.value,                      -- executed FADD, FMUL, FFMA of all threads, HMMA of all warps; count, FLOP for tensor FLOP; NULL: the rule gives none
    r.rule,                       -- the arithmetic with the numbers put in; -; NULL: never
    r.verified_error,             -- largest relative error in 95% of measured launches; 0.01 is 1%; NULL: never compared
    v.id AS rowid                 -- number of the row; -; NULL: never
FROM derived_value AS v LEFT JOIN derived_rule AS r ON r.id = v.rule_id;
CREATE TABLE source_file (        -- one source file that kernels of a run were compiled from; source_counter.file_id refers to it
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL            -- path, as the compiler noted it; -; NULL: never
) STRICT;
CREATE INDEX source_file_by_run ON source_file(run_id);
CREATE TABLE source_counter (     -- counts of one machine instruction of a launch; only with perfctl ingest --source
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    kernel_id INTEGER NOT NULL REFERENCES kernel_launch(id) ON DELETE CASCADE, -- the launch; -; NULL: never
    address INTEGER NOT NULL,     -- offset from the kernel's first instruction; byte; NULL: never
    opcode TEXT,                  -- with its modifiers, never the operands; -; NULL: the report has no machine code
    file_id INTEGER,              -- id of its source_file; -; NULL: compiled without line information
    line INTEGER,                 -- line of that file; -; NULL: compiled without line information
    inst_executed INTEGER,        -- executions by warps; count; NULL: not collected
    thread_inst_executed INTEGER, -- executions by threads; count; NULL: not collected
    samples INTEGER,              -- samples of warps that were at it; count; NULL: not collected
    stall TEXT                    -- why most of the stalled warps among them stalled; -; NULL: none did, or not collected
) STRICT;
CREATE INDEX source_counter_by_kernel ON source_counter(kernel_id);
CREATE TABLE served_step (        -- one forward pass of a server that generates text
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    number INTEGER NOT NULL,      -- of the step, as in kernel.step; -; NULL: never
    name TEXT NOT NULL,           -- annotation it was read from; -; NULL: never
    phase TEXT NOT NULL,          -- prefill, decode or mixed; -; NULL: never
    prompts INTEGER,              -- sequences in prefill; count; NULL: not stated
    prompt_tokens INTEGER,        -- tokens of these that the step computes; count; NULL: not stated
    prompt_keys INTEGER,          -- tokens that these attend to; count; NULL: not stated
    prompt_pairs INTEGER,         -- tokens times keys, summed over these sequences; count; NULL: not stated
    decodes INTEGER,              -- sequences that decode; count; NULL: not stated
    decode_tokens INTEGER,        -- tokens of these that the step computes; count; NULL: not stated
    decode_keys INTEGER,          -- tokens that these attend to; count; NULL: not stated
    decode_pairs INTEGER          -- tokens times keys, summed over these sequences; count; NULL: not stated
) STRICT;
CREATE INDEX served_step_by_run ON served_step(run_id);
CREATE TABLE graph_launch (       -- one launch of a CUDA or HIP graph, and the kernels that its capture names
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    correlation INTEGER NOT NULL, -- as in kernel.correlation of its kernels; -; NULL: never
    step INTEGER,                 -- measured step; -; NULL: not known
    kernels INTEGER NOT NULL,     -- its kernels; count; NULL: never
    kernel_ns INTEGER,            -- of these together; ns; NULL: not known
    capture TEXT,                 -- name of the capture they were matched with; -; NULL: with none
    matched INTEGER NOT NULL,     -- kernels whose launch was found in that capture; count; NULL: never
    how TEXT,                     -- matched by node, name, order, or eager (a guess from a run without graphs); -; NULL: not matched
    confidence REAL               -- that these kernels have the right layer, kernel.layer_source capture or guessed; 0..1; NULL: not matched
) STRICT;
CREATE INDEX graph_launch_by_run ON graph_launch(run_id);
CREATE TABLE parameter (          -- one parameter of a run in a sweep; the batch size is one of them
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- name of the parameter; -; NULL: never
    value TEXT NOT NULL,          -- its value as it was given; -; NULL: never
    number REAL,                  -- the value as a number; -; NULL: it is not a number
    PRIMARY KEY (run_id, name)
) STRICT;
CREATE TABLE expectation (        -- one formula that the user gave for kernels or ranges
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    pattern TEXT NOT NULL,        -- which kernels or ranges it is for, by name; -; NULL: never
    flops INTEGER,                -- FLOPs that the formula gives for one launch or range; FLOP; NULL: no FLOPs were given
    bytes INTEGER,                -- bytes that it gives for one launch or range; byte; NULL: no bytes were given
    formula TEXT,                 -- the formula in words or symbols; -; NULL: only numbers were given
    source TEXT NOT NULL,         -- origin, option, file or registered; -; NULL: never
    CHECK (source IN ('option', 'file', 'registered'))
) STRICT;
CREATE INDEX expectation_by_run ON expectation(run_id);
CREATE TABLE counter_sample (     -- one sample of a device counter over time
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    device_index INTEGER,         -- CUDA ordinal; -; NULL: not stated
    name TEXT NOT NULL,           -- name of the counter; -; NULL: never
    at_ns INTEGER NOT NULL,       -- when, on the report's clock; ns; NULL: never
    value REAL,                   -- in the unit of the column unit; base units; NULL: not read
    unit TEXT                     -- base unit; -; NULL: a plain count or ratio
) STRICT;
CREATE INDEX counter_sample_by_run ON counter_sample(run_id);

CREATE TABLE store_info (         -- one fact about this file itself
    key TEXT PRIMARY KEY,         -- written_by, created_at; -; NULL: never
    value TEXT                    -- the fact; -; NULL: never
);
CREATE TABLE sweep (              -- one 'perfctl PROFILER --batches ...' call, or one ingest
    id INTEGER PRIMARY KEY,       -- number of the sweep; -; NULL: never
    name TEXT NOT NULL,           -- name of its folder, or of the ingest; -; NULL: never
    kind TEXT NOT NULL,           -- sweep or ingest; -; NULL: never
    created_at TEXT NOT NULL,     -- when it was first asked for; UTC, ISO 8601; NULL: never
    command TEXT,                 -- the command line, ready to paste; -; NULL: called from Python
    host TEXT                     -- host name; -; NULL: not known
);
CREATE TABLE device (             -- a GPU or CPU as seen by a run
    id INTEGER PRIMARY KEY,       -- number of the device; -; NULL: never
    name TEXT,                    -- as the driver or /proc/cpuinfo names it; -; NULL: the report does not say
    kind TEXT NOT NULL,           -- gpu or cpu; -; NULL: never
    compute_capability TEXT,      -- CUDA compute capability, as in 9.0; -; NULL: not known, or a CPU
    sm_count INTEGER,             -- streaming multiprocessors; count; NULL: not known, or a CPU
    memory_bytes INTEGER,         -- memory of the device; byte; NULL: not known
    memory_bandwidth_bps INTEGER, -- peak memory bandwidth as the report states it; byte/s; NULL: not stated
    clock_hz INTEGER,             -- peak core clock as the report states it; Hz; NULL: not stated
    driver_version TEXT           -- driver; -; NULL: not stated
);
CREATE TABLE run (                -- one profiled process at one batch size
    id INTEGER PRIMARY KEY,       -- number of the run; -; NULL: never
    sweep_id INTEGER NOT NULL REFERENCES sweep(id) ON DELETE CASCADE, -- the sweep it belongs to; -; NULL: never
    profiler TEXT NOT NULL,       -- nsys, ncu, dlprof, torch, nvidia-smi, dcgm, nvprof, none; -; NULL: never
    profiler_version TEXT,        -- version of that tool; -; NULL: the report does not say
    workload TEXT,                -- name of the workload or script; -; NULL: the file does not say and nobody told
    variant TEXT,                 -- the workload's own options that are not at their default; -; NULL: all are, or not known
    batch_size INTEGER,           -- samples a step; count; NULL: the file does not say and nobody told
    mode TEXT,                    -- train or infer; -; NULL: not known
    precision TEXT,               -- fp32, tf32, bf16, fp16; -; NULL: not known
    device_id INTEGER REFERENCES device(id), -- the device that did the work; -; NULL: not known
    status TEXT NOT NULL,         -- ok, failed, partial; -; NULL: never
    exit_code INTEGER,            -- of the profiled command; -; NULL: it was ended by perfctl, or not run by it
    reason TEXT,                  -- why the status is not ok; -; NULL: the status is ok
    started_at TEXT,              -- start of the process or capture; UTC, ISO 8601; NULL: not known
    duration_ns INTEGER,          -- of the process or capture; ns; NULL: not known
    artifact TEXT,                -- report file or folder, relative to the store where it lies below it; path; NULL: none was left
    artifact_sha256 TEXT,         -- of that file, or of a folder's files in order; hex; NULL: none was left
    origin TEXT NOT NULL,         -- measured, ingested, recorded (replayed) or synthetic; -; NULL: never
    form TEXT,                    -- the format that was recognised; -; NULL: nothing was read
    command TEXT,                 -- argument list of the profiled process; JSON; NULL: not known
    clock TEXT,                   -- what timed the steps, device_events or monotonic; -; NULL: no steps were timed
    ingested_at TEXT NOT NULL     -- when the row was written; UTC, ISO 8601; NULL: never
);
CREATE INDEX run_by_sweep ON run(sweep_id);
CREATE INDEX run_by_artifact ON run(artifact_sha256);
CREATE TABLE run_device (         -- a device that a run could see
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    device_index INTEGER NOT NULL, -- CUDA ordinal in that run; -; NULL: never
    device_id INTEGER NOT NULL REFERENCES device(id), -- the device; -; NULL: never
    PRIMARY KEY (run_id, device_id, device_index)
);
CREATE TABLE environment (        -- one fact about a run's software and settings, never its environment variables
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    key TEXT NOT NULL,            -- torch, cuda, cudnn, tf32_conv, ...; -; NULL: never
    value TEXT,                   -- the fact; -; NULL: not known
    PRIMARY KEY (run_id, key)
);
CREATE TABLE layer_call (         -- pen and paper: one layer or functional operation in one direction, for one step
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
);
CREATE INDEX layer_call_by_run ON layer_call(run_id);
CREATE TABLE range (              -- one NVTX range, record_function span or step annotation
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- its text; -; NULL: never
    domain TEXT,                  -- NVTX domain; -; NULL: the default domain
    start_ns INTEGER NOT NULL,    -- on the report's clock, may be negative; ns; NULL: never
    duration_ns INTEGER,          -- length; ns; NULL: it never ended
    thread INTEGER,               -- thread that opened it; -; NULL: not known
    depth INTEGER,                -- ranges of its thread around it; count; NULL: not a nested kind
    parent INTEGER,               -- id of the range directly around it; -; NULL: none
    kind TEXT NOT NULL,           -- push_pop, start_end, mark; -; NULL: never
    layer TEXT,                   -- dotted module path; -; NULL: not one of perfctl's layer ranges
    direction TEXT,               -- of that layer; -; NULL: not one of perfctl's layer ranges
    step INTEGER,                 -- measured step around it; -; NULL: outside of steps
    phase TEXT                    -- data, forward, backward, optimizer, inference; -; NULL: outside of phases
);
CREATE INDEX range_by_run ON range(run_id);
CREATE TABLE kernel_name (        -- one kernel of a run, however often it was launched; read it through kernel
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- demangled name; -; NULL: never
    short_name TEXT,              -- without template arguments and parameters; -; NULL: the report has no such form
    family TEXT                   -- algorithm family, gemm, conv, winograd, ...; -; NULL: the name was not recognised
);
CREATE INDEX kernel_name_by_run ON kernel_name(run_id);
CREATE TABLE kernel_layer (       -- one layer in one direction that launched kernels of a run; read it through kernel
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    layer TEXT,                   -- dotted module path; -; NULL: not attributed
    direction TEXT,               -- of that layer; -; NULL: not attributed
    layer_source TEXT             -- how the layer was found, range, operation or guessed; -; NULL: not attributed
);
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
    registers INTEGER,            -- registers a thread; count; NULL: not known
    static_shared_bytes INTEGER,  -- static shared memory a block; byte; NULL: not known
    dynamic_shared_bytes INTEGER, -- dynamic shared memory a block; byte; NULL: not known
    start_ns INTEGER,             -- on the report's clock; ns; NULL: not known
    duration_ns NUMERIC           -- under ncu at locked clocks and with cold caches; ns; NULL: not collected
);
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
    p.layer_source,               -- how the layer was found, range, operation or guessed; -; NULL: not attributed
    l.range_id,                   -- innermost range around the launch call; -; NULL: none
    l.device_index,               -- CUDA ordinal; -; NULL: not known
    l.stream,                     -- CUDA stream; -; NULL: not known
    l.grid_x,                     -- blocks in x; count; NULL: not known
    l.grid_y,                     -- blocks in y; count; NULL: not known
    l.grid_z,                     -- blocks in z; count; NULL: not known
    l.block_x,                    -- threads in x; count; NULL: not known
    l.block_y,                    -- threads in y; count; NULL: not known
    l.block_z,                    -- threads in z; count; NULL: not known
    l.registers,                  -- registers a thread; count; NULL: not known
    l.static_shared_bytes,        -- static shared memory a block; byte; NULL: not known
    l.dynamic_shared_bytes,       -- dynamic shared memory a block; byte; NULL: not known
    l.start_ns,                   -- on the report's clock; ns; NULL: not known
    l.duration_ns,                -- under ncu at locked clocks and with cold caches; ns; NULL: not collected
    n.family                      -- algorithm family, gemm, conv, winograd, ...; -; NULL: the name was not recognised
FROM kernel_launch AS l LEFT JOIN kernel_name AS n ON n.id = l.name_id LEFT JOIN kernel_layer AS p ON p.id = l.layer_id;
CREATE TABLE metric (             -- one metric of a run, for however many launches; read it through counter
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- name of the metric; -; NULL: never
    unit TEXT,                    -- base unit; -; NULL: a plain count or ratio
    section TEXT                  -- section or body item that printed it; -; NULL: not stated
);
CREATE INDEX metric_by_run ON metric(run_id);
CREATE TABLE metric_value (       -- one metric of one launch, its name apart; read it through counter
    id INTEGER PRIMARY KEY,       -- number of the row, in the order of the report; -; NULL: never
    kernel_id INTEGER NOT NULL REFERENCES kernel_launch(id) ON DELETE CASCADE, -- the launch; -; NULL: never
    metric_id INTEGER NOT NULL,   -- id of its metric; -; NULL: never
    value NUMERIC,                -- in the metric's unit; base units; NULL: printed as n/a, or as text
    text TEXT                     -- a value that is no number; -; NULL: it is one, or there was none
);
CREATE INDEX metric_value_by_kernel ON metric_value(kernel_id);
CREATE VIEW counter AS            -- one metric of one launch
SELECT
    v.kernel_id,                  -- the launch; -; NULL: never
    m.name,                       -- name of the metric; -; NULL: never
    v.value,                      -- in the unit beside it; base units; NULL: printed as n/a, or as text
    m.unit,                       -- base unit; -; NULL: a plain count or ratio
    m.section,                    -- section or body item that printed it; -; NULL: not stated
    v.text,                       -- a value that is no number; -; NULL: it is one, or there was none
    v.id AS rowid                 -- number of the row, in the order of the report; -; NULL: never
FROM metric_value AS v LEFT JOIN metric AS m ON m.id = v.metric_id;
CREATE TABLE copy (               -- one memcpy or memset
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    kind TEXT NOT NULL,           -- HtoD, DtoH, DtoD, PtoP, memset, ...; -; NULL: never
    bytes INTEGER,                -- size; byte; NULL: not stated
    start_ns INTEGER,             -- on the report's clock; ns; NULL: not stated
    duration_ns INTEGER,          -- length; ns; NULL: not stated
    layer TEXT,                   -- dotted module path; -; NULL: not attributed
    device_index INTEGER,         -- CUDA ordinal; -; NULL: not known
    stream INTEGER                -- CUDA stream; -; NULL: not known
);
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
    flops INTEGER,                -- as the report states; FLOP; NULL: the report does not say
    layer TEXT,                   -- dotted module path; -; NULL: not attributed
    direction TEXT                -- of that layer; -; NULL: not attributed
);
CREATE INDEX operation_by_run ON operation(run_id);
CREATE TABLE sample (             -- one reading of a device
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    at_ns INTEGER NOT NULL,       -- when; ns; NULL: never
    gpu_utilisation REAL,         -- share of the sampling period with a kernel running; 0..1; NULL: not collected
    memory_used_bytes INTEGER,    -- used on the device by everybody; byte; NULL: not collected
    memory_total_bytes INTEGER,   -- of the device; byte; NULL: not collected
    power_w REAL,                 -- drawn; W; NULL: not collected
    temperature_c REAL,           -- of the chip; degree Celsius; NULL: not collected
    sm_clock_hz INTEGER,          -- current; Hz; NULL: not collected
    device_index INTEGER          -- ordinal; -; NULL: not stated
);
CREATE INDEX sample_by_run ON sample(run_id);
CREATE TABLE memory (             -- one memory figure
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    moment TEXT NOT NULL,         -- before, after, peak; -; NULL: never
    quantity TEXT NOT NULL,       -- allocated, reserved, host_available, host_resident, device_free, device_total; -; NULL: never
    bytes INTEGER                 -- size; byte; NULL: not collected
);
CREATE INDEX memory_by_run ON memory(run_id);
CREATE TABLE step (               -- one measured iteration, or one phase of it
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    number INTEGER NOT NULL,      -- from 0; -; NULL: never
    phase TEXT NOT NULL,          -- step, data, forward, backward, optimizer, inference, epoch, test; -; NULL: never
    start_ns INTEGER,             -- on the run's clock; ns; NULL: not timed
    duration_ns INTEGER,          -- length; ns; NULL: not timed
    loss REAL,                    -- mean over the samples; -; NULL: not computed
    accuracy REAL                 -- share of right answers; 0..1; NULL: not computed
);
CREATE INDEX step_by_run ON step(run_id);
CREATE TABLE summary (            -- a figure that a report gives ready-made
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- as the report labels it; -; NULL: never
    value REAL,                   -- the figure; in the unit beside it; NULL: no number
    unit TEXT,                    -- its unit; -; NULL: none
    text TEXT                     -- a value that is no number; -; NULL: it is one
);
CREATE INDEX summary_by_run ON summary(run_id);
CREATE TABLE gap (                -- why a figure is NULL
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    quantity TEXT NOT NULL,       -- table, column or metric; -; NULL: never
    state TEXT NOT NULL,          -- not_collected, not_available, unreadable, ambiguous; -; NULL: never
    reason TEXT NOT NULL,         -- in words; -; NULL: never
    scope TEXT,                   -- the layer or kernel it concerns; -; NULL: the whole run
    CHECK (state IN ('not_collected', 'not_available', 'unreadable', 'ambiguous'))
);
CREATE INDEX gap_by_run ON gap(run_id);
CREATE TABLE diagnostic (         -- something the tool itself said about the capture
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    severity TEXT NOT NULL,       -- info, warning, error; -; NULL: never
    source TEXT NOT NULL,         -- who said it; -; NULL: never
    text TEXT NOT NULL            -- what; -; NULL: never
);
CREATE INDEX diagnostic_by_run ON diagnostic(run_id);
CREATE TABLE op_shape (           -- what one operation saw when a step ran; what pen and paper starts from
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    position INTEGER NOT NULL,    -- order of first call; -; NULL: never
    layer TEXT NOT NULL,          -- dotted module path, empty outside of modules; -; NULL: never
    op TEXT NOT NULL,             -- dispatcher name; -; NULL: never
    direction TEXT NOT NULL,      -- forward, backward or optimizer; -; NULL: never
    record TEXT NOT NULL          -- kind, shapes, dtypes, attributes, parameters, calls; JSON; NULL: never
);
CREATE INDEX op_shape_by_run ON op_shape(run_id);

ALTER TABLE run ADD COLUMN rank INTEGER; -- rank of the process among those that worked together, from 0; -; NULL: not known
ALTER TABLE run ADD COLUMN world_size INTEGER; -- processes that worked together; count; NULL: not known
ALTER TABLE run ADD COLUMN host TEXT; -- host name of the machine that the process ran on; -; NULL: not known
ALTER TABLE run ADD COLUMN phase TEXT; -- train, prefill, decode, infer; -; NULL: not known, or more than one
ALTER TABLE run ADD COLUMN effective_batch INTEGER; -- samples a step, all batches of gradient accumulation included; count; NULL: not known
ALTER TABLE kernel_launch ADD COLUMN process INTEGER; -- id of the process that launched it; -; NULL: not known
ALTER TABLE kernel_launch ADD COLUMN context INTEGER; -- CUDA context; -; NULL: not known
ALTER TABLE kernel_launch ADD COLUMN graph_id INTEGER; -- CUDA graph that launched it; -; NULL: no graph did, or not known
ALTER TABLE kernel_launch ADD COLUMN graph_node_id INTEGER; -- its node in that graph; -; NULL: no graph launched it, or not known
ALTER TABLE kernel_launch ADD COLUMN correlation INTEGER; -- the report's number that joins it to its launch call; -; NULL: not known
ALTER TABLE kernel_launch ADD COLUMN cluster_x INTEGER; -- blocks of a cluster in x; count; NULL: launched without clusters, or not known
ALTER TABLE kernel_launch ADD COLUMN cluster_y INTEGER; -- blocks of a cluster in y; count; NULL: launched without clusters, or not known
ALTER TABLE kernel_launch ADD COLUMN cluster_z INTEGER; -- blocks of a cluster in z; count; NULL: launched without clusters, or not known
ALTER TABLE kernel_launch ADD COLUMN occupancy REAL; -- share of a multiprocessor's warp slots in use, as the report states it; 0..1; NULL: not stated
ALTER TABLE kernel_launch ADD COLUMN source TEXT; -- of its executed instructions, counted or derived; -; NULL: neither
DROP VIEW kernel;
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
    l.registers,                  -- registers a thread; count; NULL: not known
    l.static_shared_bytes,        -- static shared memory a block; byte; NULL: not known
    l.dynamic_shared_bytes,       -- dynamic shared memory a block; byte; NULL: not known
    l.start_ns,                   -- on the report's clock; ns; NULL: not known
    l.duration_ns,                -- under ncu at locked clocks and with cold caches; ns; NULL: not collected
    n.family,                     -- algorithm family, gemm, conv, winograd, ...; -; NULL: the name was not recognised
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
ALTER TABLE range ADD COLUMN gpu_ns INTEGER; -- of the kernels, copies and memsets launched inside it, added up (duration_ns is time on the host); ns; NULL: not known
ALTER TABLE range ADD COLUMN gpu_span_ns INTEGER; -- from the start of the first of these to the end of the last; ns; NULL: none were launched inside it, or not known
ALTER TABLE range ADD COLUMN payload TEXT; -- value that the program gave with it; -; NULL: none given, or not read
ALTER TABLE copy ADD COLUMN source_memory TEXT; -- memory that it reads, pageable, pinned, device or managed; -; NULL: not stated, or a memset
ALTER TABLE copy ADD COLUMN destination_memory TEXT; -- memory that it writes, pageable, pinned, device or managed; -; NULL: not stated
ALTER TABLE copy ADD COLUMN peer_device INTEGER; -- CUDA ordinal of the other GPU; -; NULL: not between two GPUs, or not stated
ALTER TABLE sample ADD COLUMN allocated_bytes INTEGER; -- in tensors, by PyTorch's allocator of the device; byte; NULL: not recorded
ALTER TABLE sample ADD COLUMN reserved_bytes INTEGER; -- taken from the device by that allocator; byte; NULL: not recorded
CREATE TABLE api_call (           -- all calls of one function of a runtime, driver or operating system in a run
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    domain TEXT NOT NULL,         -- cuda, hip, osrt, nvtx, mpi, nccl, cudnn, cublas, python (functions), sync (waiting on the GPU, by kind); -; NULL: never
    name TEXT NOT NULL,           -- name of the function; -; NULL: never
    calls INTEGER,                -- how often; count; NULL: not stated
    total_ns INTEGER,             -- of all calls together, on the host; ns; NULL: not stated
    min_ns INTEGER,               -- of the shortest call; ns; NULL: not stated
    max_ns INTEGER                -- of the longest call; ns; NULL: not stated
);
CREATE INDEX api_call_by_run ON api_call(run_id);
CREATE TABLE thread (             -- one thread of the host that made calls or ranges, and its name
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    process INTEGER NOT NULL,     -- id of its process; -; NULL: never
    thread INTEGER NOT NULL,      -- its own id, as in range.thread; -; NULL: never
    name TEXT NOT NULL            -- its name; -; NULL: never
);
CREATE INDEX thread_by_run ON thread(run_id);
CREATE TABLE stack (              -- one call stack of a run; op_call.stack_id refers to it
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    text TEXT NOT NULL            -- frames as the report has them, one a line; -; NULL: never
);
CREATE INDEX stack_by_run ON stack(run_id);
CREATE TABLE op_signature (       -- what many instances of an operator share; read it through op_call
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- name of the operator; -; NULL: never
    shapes TEXT,                  -- shapes of its inputs; JSON; NULL: not recorded
    dtypes TEXT,                  -- types of its inputs; JSON; NULL: not recorded
    layer TEXT,                   -- dotted module path; -; NULL: not attributed
    direction TEXT                -- of that layer; -; NULL: not attributed
);
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
);
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
);
CREATE INDEX collective_by_run ON collective(run_id);
CREATE TABLE compiled_kernel (    -- all calls of one kernel that a compiler (Inductor) wrote
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- name of the kernel, which several may share; -; NULL: never
    file TEXT,                    -- source that the compiler wrote, on the machine of the run; -; NULL: not stated
    hash TEXT,                    -- of that source; -; NULL: not stated
    backend TEXT,                 -- triton, ...; -; NULL: not stated
    origins TEXT,                 -- operators that were fused, as the name has them; -; NULL: it names none
    calls INTEGER,                -- how often; count; NULL: not known
    device_ns INTEGER,            -- of its launches together; ns; NULL: not known
    elements INTEGER,             -- elements that the loops of one call run over, those of a reduction included, or of a template's output; count; NULL: the call does not say
    reduced INTEGER,              -- elements that are reduced into one result; count; NULL: it reduces nothing, or the call does not say
    argument_bytes INTEGER,       -- of all tensors that one call is given, once each; byte; NULL: shapes were not recorded
    flops INTEGER,                -- of the product in a template (triton_tem), one call, from shapes, 1 multiply-add is 2; FLOP; NULL: no template, or not known (gap)
    stated_flops INTEGER,         -- of products in one call, as Inductor states them (kernel_flop); FLOP; NULL: not stated
    stated_bytes INTEGER,         -- read and written by one call, as Inductor states it (kernel_num_gb); byte; NULL: not stated
    elementwise INTEGER           -- operators that the name lists and that compute, once on each element, an estimate, in no total; count; NULL: it lists others, or elements are not known
);
CREATE INDEX compiled_kernel_by_run ON compiled_kernel(run_id);
CREATE TABLE kernel_part (        -- what a fused kernel did for one of several layers; kernel.layer_source of it is shared
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    launch INTEGER NOT NULL,      -- kernel.launch in the same run; -; NULL: never
    layer TEXT,                   -- dotted module path, inferred from source lines; -; NULL: the model itself, outside of its layers
    direction TEXT,               -- of that layer; -; NULL: of no layer
    origins INTEGER NOT NULL,     -- operations of the program that were fused into the kernel for it; count; NULL: never
    share REAL NOT NULL           -- of the kernel's time and counts, by operations (one an element, and all FLOPs of a product), an estimate; 0..1; NULL: never
);
CREATE INDEX kernel_part_by_run ON kernel_part(run_id);
CREATE TABLE advice (             -- what one rule of a profiler said of a launch or of a report
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    launch INTEGER,               -- kernel.launch in the same run; -; NULL: it concerns the whole report
    rule TEXT NOT NULL,           -- name of the rule; -; NULL: never
    kind TEXT,                    -- the profiler's kind of result, such as OPT, INF, WRN; -; NULL: not stated
    text TEXT,                    -- the result in the profiler's words; -; NULL: not stated
    estimated_speedup REAL,       -- share of the time that following it saves, as the profiler estimates; 0..1; NULL: not stated
    speedup_scope TEXT            -- what it is a share of, global (the launch) or local (one unit's work); -; NULL: not stated
);
CREATE INDEX advice_by_run ON advice(run_id);
CREATE TABLE derived_rule (       -- how instructions of launches were derived; read it through derived_count
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    instruction TEXT NOT NULL,    -- FADD, FMUL, FFMA, HMMA, or tensor FLOP where no name says what an HMMA does; -; NULL: never
    rule TEXT NOT NULL,           -- the arithmetic with the numbers put in; -; NULL: never
    verified_error REAL           -- relative error that 95 % of counted launches stayed within; 0.01 is 1 %; NULL: never compared
);
CREATE INDEX derived_rule_by_run ON derived_rule(run_id);
CREATE TABLE derived_value (      -- one derived count of one launch, its rule apart; read it through derived_count
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    kernel_id INTEGER NOT NULL REFERENCES kernel_launch(id) ON DELETE CASCADE, -- the launch; -; NULL: never
    rule_id INTEGER NOT NULL,     -- id of its derived_rule; -; NULL: never
    value NUMERIC                 -- executed FADD, FMUL, FFMA of all threads, HMMA of all warps; count, FLOP for tensor FLOP; NULL: the rule gives none
);
CREATE INDEX derived_value_by_kernel ON derived_value(kernel_id);
CREATE VIEW derived_count AS      -- executed instructions of one kind in one launch that no counter measured
SELECT
    v.kernel_id,                  -- the launch; -; NULL: never
    r.instruction,                -- FADD, FMUL, FFMA, HMMA, or tensor FLOP where no name says what an HMMA does; -; NULL: never
    v.value,                      -- executed FADD, FMUL, FFMA of all threads, HMMA of all warps; count, FLOP for tensor FLOP; NULL: the rule gives none
    r.rule,                       -- the arithmetic with the numbers put in; -; NULL: never
    r.verified_error,             -- relative error that 95 % of counted launches stayed within; 0.01 is 1 %; NULL: never compared
    v.id AS rowid                 -- number of the row; -; NULL: never
FROM derived_value AS v LEFT JOIN derived_rule AS r ON r.id = v.rule_id;
CREATE TABLE source_file (        -- one source file that kernels of a run were compiled from; source_counter.file_id refers to it
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL            -- path, as the compiler noted it; -; NULL: never
);
CREATE INDEX source_file_by_run ON source_file(run_id);
CREATE TABLE source_counter (     -- what one machine instruction of a launch did; only with perfctl ingest --source
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
);
CREATE INDEX source_counter_by_kernel ON source_counter(kernel_id);
CREATE TABLE served_step (        -- one forward pass of a server that generates text
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    number INTEGER NOT NULL,      -- of the step, as in kernel.step; -; NULL: never
    name TEXT NOT NULL,           -- annotation it was read from; -; NULL: never
    phase TEXT NOT NULL,          -- prefill, decode or mixed; -; NULL: never
    prompts INTEGER,              -- sequences in prefill; count; NULL: the annotation does not say
    prompt_tokens INTEGER,        -- tokens of these that the step computes; count; NULL: the annotation does not say
    prompt_keys INTEGER,          -- tokens that these attend to; count; NULL: the annotation does not say
    prompt_pairs INTEGER,         -- tokens times keys, summed over these sequences; count; NULL: the annotation does not say
    decodes INTEGER,              -- sequences that decode; count; NULL: the annotation does not say
    decode_tokens INTEGER,        -- tokens of these that the step computes; count; NULL: the annotation does not say
    decode_keys INTEGER,          -- tokens that these attend to; count; NULL: the annotation does not say
    decode_pairs INTEGER          -- tokens times keys, summed over these sequences; count; NULL: the annotation does not say
);
CREATE INDEX served_step_by_run ON served_step(run_id);
CREATE TABLE graph_launch (       -- one launch of a CUDA or HIP graph, and what the capture of the graph says of its kernels
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    correlation INTEGER NOT NULL, -- as in kernel.correlation of its kernels; -; NULL: never
    step INTEGER,                 -- measured step; -; NULL: not known
    kernels INTEGER NOT NULL,     -- its kernels; count; NULL: never
    kernel_ns INTEGER,            -- of these together; ns; NULL: not known
    capture TEXT,                 -- name of the capture they were matched with; -; NULL: with none
    matched INTEGER NOT NULL,     -- kernels whose launch was found in that capture; count; NULL: never
    matched_ns INTEGER,           -- of these together; ns; NULL: not known
    how TEXT,                     -- what they were matched by, node, name, order, or eager (by sequence with a run without graphs, a guess); -; NULL: not matched
    confidence REAL               -- that these kernels have the right layer, kernel.layer_source capture or guessed; 0..1; NULL: not matched
);
CREATE INDEX graph_launch_by_run ON graph_launch(run_id);
DROP INDEX run_by_sweep;
CREATE INDEX run_by_sweep ON run(sweep_id, workload, batch_size);

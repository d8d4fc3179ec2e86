PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
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
INSERT INTO "copy" VALUES(3,'HtoD',4096,1007000,1500,NULL,0,7);
INSERT INTO "copy" VALUES(3,'memset',512,1540000,2000,'conv1',0,7);
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
INSERT INTO "device" VALUES(1,NULL,'gpu','8.0',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "device" VALUES(2,'Synthetic GPU A','gpu',NULL,NULL,1048576000,NULL,NULL,'555.10');
INSERT INTO "device" VALUES(3,'Synthetic GPU B','gpu',NULL,NULL,2097152000,NULL,NULL,'555.10');
INSERT INTO "device" VALUES(4,'Synthetic GPU','gpu','9.0',132,17179869184,NULL,NULL,NULL);
INSERT INTO "device" VALUES(5,'Synthetic GPU A','gpu',NULL,NULL,NULL,NULL,NULL,'515.43.04');
INSERT INTO "device" VALUES(6,'Synthetic GPU B','gpu',NULL,NULL,NULL,NULL,NULL,'515.43.04');
INSERT INTO "device" VALUES(7,'Synthetic CPU','cpu',NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "device" VALUES(8,'AMD EPYC','cpu',NULL,NULL,25276510208,NULL,NULL,NULL);
CREATE TABLE diagnostic (         -- something the tool itself said about the capture
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    severity TEXT NOT NULL,       -- info, warning, error; -; NULL: never
    source TEXT NOT NULL,         -- who said it; -; NULL: never
    text TEXT NOT NULL            -- what; -; NULL: never
);
INSERT INTO "diagnostic" VALUES(2,'warning','perfctl','the timestamps have no time zone and were read as UTC');
INSERT INTO "diagnostic" VALUES(2,'info','perfctl','kept as summaries, mean, min and max over the file: utilization.memory, fan.speed, pstate');
INSERT INTO "diagnostic" VALUES(4,'info','DLProf expert systems','5 ops could use tensor cores. Try AMP');
INSERT INTO "diagnostic" VALUES(4,'info','perfctl','DLProf rounds percentages to one decimal in CSV: 0.0 % is anything below 0.05 %');
CREATE TABLE environment (        -- one fact about a run's software and settings, never its environment variables
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    key TEXT NOT NULL,            -- torch, cuda, cudnn, tf32_conv, ...; -; NULL: never
    value TEXT,                   -- the fact; -; NULL: not known
    PRIMARY KEY (run_id, key)
);
INSERT INTO "environment" VALUES(2,'driver_version','555.10');
INSERT INTO "environment" VALUES(3,'cuda_runtime_version','12040');
INSERT INTO "environment" VALUES(3,'cupti_version','22');
INSERT INTO "environment" VALUES(3,'profile_memory','1');
INSERT INTO "environment" VALUES(3,'cuda','12.4');
INSERT INTO "environment" VALUES(3,'clock_base_ns','1751410836000000000');
INSERT INTO "environment" VALUES(3,'schema_version','1');
INSERT INTO "environment" VALUES(4,'framework','PyTorch 1.10.1');
INSERT INTO "environment" VALUES(4,'cuda','11.7');
INSERT INTO "environment" VALUES(4,'cudnn','8.3.0');
INSERT INTO "environment" VALUES(4,'dlprof','v1.8.0');
INSERT INTO "environment" VALUES(4,'cpu_model','Synthetic CPU');
INSERT INTO "environment" VALUES(4,'driver_version','515.43.04');
INSERT INTO "environment" VALUES(4,'torch','1.10.1');
INSERT INTO "environment" VALUES(5,'record_shapes','1');
INSERT INTO "environment" VALUES(5,'profile_memory','1');
INSERT INTO "environment" VALUES(5,'clock_base_ns','1790857026000000000');
INSERT INTO "environment" VALUES(5,'schema_version','1');
INSERT INTO "environment" VALUES(5,'python','3.11.7');
INSERT INTO "environment" VALUES(5,'torch','2.15.0+cu132');
INSERT INTO "environment" VALUES(5,'torchvision','0.29.2');
INSERT INTO "environment" VALUES(5,'cuda','13.2');
INSERT INTO "environment" VALUES(5,'cudnn','9.26.0');
INSERT INTO "environment" VALUES(5,'tf32_conv','off');
INSERT INTO "environment" VALUES(5,'tf32_matmul','off');
INSERT INTO "environment" VALUES(5,'cudnn_benchmark','off');
INSERT INTO "environment" VALUES(5,'threads','2');
INSERT INTO "environment" VALUES(5,'cpu','AMD EPYC');
INSERT INTO "environment" VALUES(5,'cpu_count','2');
INSERT INTO "environment" VALUES(5,'os','Linux');
INSERT INTO "environment" VALUES(5,'kernel','6.18.44-fc-v657');
INSERT INTO "environment" VALUES(5,'architecture','x86_64');
INSERT INTO "environment" VALUES(5,'host_peak_covers','measured steps');
INSERT INTO "environment" VALUES(5,'option:mode','train');
INSERT INTO "environment" VALUES(5,'option:device','cpu');
INSERT INTO "environment" VALUES(5,'option:precision','fp32');
INSERT INTO "environment" VALUES(5,'option:seed','0');
INSERT INTO "environment" VALUES(5,'option:steps','3');
INSERT INTO "environment" VALUES(5,'option:warmup','2');
INSERT INTO "environment" VALUES(5,'option:epochs','0');
INSERT INTO "environment" VALUES(5,'option:data','synthetic');
INSERT INTO "environment" VALUES(5,'option:download','False');
INSERT INTO "environment" VALUES(5,'option:conv2','[32, 64, 3, 1]');
INSERT INTO "environment" VALUES(5,'seed','0');
INSERT INTO "environment" VALUES(5,'clock','monotonic');
CREATE TABLE feature (            -- one figure of a step from pen and paper, that times are set against
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- what it counts, macs, macs:Conv2d, bytes, layers, parameters, ...; -; NULL: never
    value REAL NOT NULL,          -- the figure; in the unit beside it; NULL: never
    unit TEXT                     -- its unit; -; NULL: a plain count
);
CREATE TABLE gap (                -- why a figure is NULL
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    quantity TEXT NOT NULL,       -- table, column or metric; -; NULL: never
    state TEXT NOT NULL,          -- not_collected, not_available, unreadable, ambiguous; -; NULL: never
    reason TEXT NOT NULL,         -- in words; -; NULL: never
    scope TEXT,                   -- the layer or kernel it concerns; -; NULL: the whole run
    CHECK (state IN ('not_collected', 'not_available', 'unreadable', 'ambiguous'))
);
INSERT INTO "gap" VALUES(1,'kernel.duration_ns','not_collected','gpu__time_duration.sum is not among the metrics',NULL);
INSERT INTO "gap" VALUES(1,'kernel.registers','not_collected','launch__registers_per_thread is not among the metrics',NULL);
INSERT INTO "gap" VALUES(1,'batch_size','not_available','the file does not say; give it with perfctl ingest --batch',NULL);
INSERT INTO "gap" VALUES(2,'sample.gpu_utilisation','not_available','printed instead: ''Unknown Error'' 1 times',NULL);
INSERT INTO "gap" VALUES(2,'sample.power_w','not_available','printed instead: ''N/A'' 2 times',NULL);
INSERT INTO "gap" VALUES(2,'batch_size','not_available','the file does not say; give it with perfctl ingest --batch',NULL);
INSERT INTO "gap" VALUES(3,'kernel.layer','not_collected','1 of 4 launches are outside every range named <layer>:<direction> and every module',NULL);
INSERT INTO "gap" VALUES(3,'kernel.static_shared_bytes','ambiguous','Kineto gives static and dynamic shared memory as one sum or not at all, so each is known only where the sum is 0',NULL);
INSERT INTO "gap" VALUES(3,'kernel.dynamic_shared_bytes','ambiguous','Kineto gives static and dynamic shared memory as one sum or not at all, so each is known only where the sum is 0',NULL);
INSERT INTO "gap" VALUES(3,'operation.flops','not_available','torch.profiler writes no FLOPs into its traces',NULL);
INSERT INTO "gap" VALUES(3,'batch_size','not_available','the file does not say; give it with perfctl ingest --batch',NULL);
INSERT INTO "gap" VALUES(4,'copy','not_available','DLProf''s reports list no memcpy or memset, and no streams, registers or shared memory of kernels',NULL);
INSERT INTO "gap" VALUES(4,'kernel.stream','not_available','DLProf''s reports list no memcpy or memset, and no streams, registers or shared memory of kernels',NULL);
INSERT INTO "gap" VALUES(4,'kernel.registers','not_available','DLProf''s reports list no memcpy or memset, and no streams, registers or shared memory of kernels',NULL);
INSERT INTO "gap" VALUES(4,'kernel.static_shared_bytes','not_available','DLProf''s reports list no memcpy or memset, and no streams, registers or shared memory of kernels',NULL);
INSERT INTO "gap" VALUES(4,'kernel.dynamic_shared_bytes','not_available','DLProf''s reports list no memcpy or memset, and no streams, registers or shared memory of kernels',NULL);
INSERT INTO "gap" VALUES(4,'operation.memory_bytes','not_available','DLProf reports neither memory, FLOPs nor CPU time without children',NULL);
INSERT INTO "gap" VALUES(4,'operation.flops','not_available','DLProf reports neither memory, FLOPs nor CPU time without children',NULL);
INSERT INTO "gap" VALUES(4,'operation.self_cpu_ns','not_available','DLProf reports neither memory, FLOPs nor CPU time without children',NULL);
INSERT INTO "gap" VALUES(4,'batch_size','not_available','the file does not say; give it with perfctl ingest --batch',NULL);
INSERT INTO "gap" VALUES(5,'kernel','not_collected','the trace holds no GPU activity: torch.profiler ran without ProfilerActivity.CUDA, or without a GPU',NULL);
INSERT INTO "gap" VALUES(5,'operation.device_ns','not_collected','the trace holds no GPU activity: torch.profiler ran without ProfilerActivity.CUDA, or without a GPU',NULL);
INSERT INTO "gap" VALUES(5,'operation.flops','not_available','torch.profiler writes no FLOPs into its traces',NULL);
INSERT INTO "gap" VALUES(5,'memory:allocated','not_available','torch keeps no allocator statistics for the CPU',NULL);
INSERT INTO "gap" VALUES(5,'memory:reserved','not_available','torch keeps no allocator statistics for the CPU',NULL);
INSERT INTO "gap" VALUES(5,'memory:device_free','not_available','the run used no GPU',NULL);
INSERT INTO "gap" VALUES(5,'memory:device_total','not_available','the run used no GPU',NULL);
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
INSERT INTO "kernel_launch" VALUES(1,1,1,0,1,3,NULL,0,7,16,2,1,128,1,1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "kernel_launch" VALUES(2,1,2,1,1,3,NULL,0,7,16,2,1,128,1,1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "kernel_launch" VALUES(3,1,3,2,2,4,NULL,0,7,16,2,1,128,1,1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "kernel_launch" VALUES(4,1,4,3,NULL,NULL,NULL,0,7,16,2,1,128,1,1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "kernel_launch" VALUES(5,1,5,4,NULL,NULL,NULL,0,7,16,2,1,128,1,1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "kernel_launch" VALUES(6,1,6,5,3,NULL,NULL,0,7,16,2,1,128,1,1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "kernel_launch" VALUES(7,3,7,0,4,0,3,0,7,12,3,2,128,1,1,64,0,0,1060123,20001);
INSERT INTO "kernel_launch" VALUES(8,3,8,1,NULL,0,2,0,7,4,1,1,256,1,1,16,NULL,NULL,1261000,3000);
INSERT INTO "kernel_launch" VALUES(9,3,9,2,5,0,5,0,7,8,1,1,64,1,1,255,0,0,1525000,40250);
INSERT INTO "kernel_launch" VALUES(10,3,10,3,4,0,3,0,7,1,1,1,32,1,1,8,0,0,1115000,5000);
INSERT INTO "kernel_launch" VALUES(11,4,11,0,6,2,NULL,0,NULL,8,2,1,128,1,1,NULL,NULL,NULL,5000,100);
INSERT INTO "kernel_launch" VALUES(12,4,12,1,7,1,NULL,0,NULL,4,1,1,256,1,1,NULL,NULL,NULL,6000,400);
INSERT INTO "kernel_launch" VALUES(13,4,13,2,8,1,NULL,1,NULL,8,2,1,128,1,1,NULL,NULL,NULL,7000,200);
CREATE TABLE kernel_layer (       -- one layer in one direction that launched kernels of a run; read it through kernel
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    layer TEXT,                   -- dotted module path; -; NULL: not attributed
    direction TEXT,               -- of that layer; -; NULL: not attributed
    layer_source TEXT             -- how the layer was found, range, operation or guessed; -; NULL: not attributed
);
INSERT INTO "kernel_layer" VALUES(1,1,'features.conv2','forward','range');
INSERT INTO "kernel_layer" VALUES(2,1,'conv1','grad_weight','range');
INSERT INTO "kernel_layer" VALUES(3,1,'fc1','forward','range');
INSERT INTO "kernel_layer" VALUES(4,3,'conv1','forward','range');
INSERT INTO "kernel_layer" VALUES(5,3,'conv1','backward','range');
INSERT INTO "kernel_layer" VALUES(6,4,'conv1','forward','range');
INSERT INTO "kernel_layer" VALUES(7,4,'features.0','backward','operation');
INSERT INTO "kernel_layer" VALUES(8,4,'net','forward','operation');
CREATE TABLE kernel_name (        -- one kernel of a run, however often it was launched; read it through kernel
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- demangled name; -; NULL: never
    short_name TEXT,              -- without template arguments and parameters; -; NULL: the report has no such form
    family TEXT                   -- algorithm family, gemm, conv, winograd, ...; -; NULL: the name was not recognised
);
INSERT INTO "kernel_name" VALUES(1,1,'implicit_convolve_sgemm',NULL,'conv');
INSERT INTO "kernel_name" VALUES(2,1,'add_kernel',NULL,'elementwise');
INSERT INTO "kernel_name" VALUES(3,1,'wgrad_kernel',NULL,'conv');
INSERT INTO "kernel_name" VALUES(4,1,'memset_kernel',NULL,'copy');
INSERT INTO "kernel_name" VALUES(5,1,'foreign_kernel',NULL,NULL);
INSERT INTO "kernel_name" VALUES(6,1,'gemm_kernel',NULL,'gemm');
INSERT INTO "kernel_name" VALUES(7,3,'void conv<float, 128>(float*)',NULL,NULL);
INSERT INTO "kernel_name" VALUES(8,3,'relu',NULL,'elementwise');
INSERT INTO "kernel_name" VALUES(9,3,'dgrad',NULL,'conv');
INSERT INTO "kernel_name" VALUES(10,3,'triton_add',NULL,NULL);
INSERT INTO "kernel_name" VALUES(11,4,'void conv<float, (int)3>(T1 *, int)','conv',NULL);
INSERT INTO "kernel_name" VALUES(12,4,'gemm','gemm','gemm');
INSERT INTO "kernel_name" VALUES(13,4,'conv','conv',NULL);
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
INSERT INTO "layer_call" VALUES(5,'conv1','Conv2d','forward',3115008,6230016,320,51456,1384448,346112,'N x P x Q x K x (C/g x R x S) = 16 x 26 x 26 x 32 x (1 x 3 x 3) = 3,115,008 MAC = 6,230,016 FLOP',346112,1,0);
INSERT INTO "layer_call" VALUES(5,'relu1','ReLU','forward',0,0,0,1384448,1384448,346112,'1 x 346,112 output values, elementwise',346112,1,1);
INSERT INTO "layer_call" VALUES(5,'conv2','Conv2d','forward',169869312,339738624,18496,1458432,2359296,589824,'N x P x Q x K x (C/g x R x S) = 16 x 24 x 24 x 64 x (32 x 3 x 3) = 169,869,312 MAC = 339,738,624 FLOP',589824,1,2);
INSERT INTO "layer_call" VALUES(5,'relu2','ReLU','forward',0,0,0,2359296,2359296,589824,'1 x 589,824 output values, elementwise',589824,1,3);
INSERT INTO "layer_call" VALUES(5,'pool','MaxPool2d','forward',0,0,0,2359296,1769472,147456,'window 4 x 147,456 output values, elementwise',589824,1,4);
INSERT INTO "layer_call" VALUES(5,'dropout1','Dropout','forward',0,0,0,2359296,1769472,147456,'147,456 values moved, no arithmetic; 1 x 147,456 output values, elementwise; 1 x 147,456 output values, elementwise',294912,1,5);
INSERT INTO "layer_call" VALUES(5,'fc1','Linear','forward',18874368,37748736,1179776,5308928,8192,2048,'M x K x N = 16 x 9,216 x 128 = 18,874,368 MAC = 37,748,736 FLOP',2048,1,8);
INSERT INTO "layer_call" VALUES(5,'relu3','ReLU','forward',0,0,0,8192,8192,2048,'1 x 2,048 output values, elementwise',2048,1,9);
INSERT INTO "layer_call" VALUES(5,'dropout2','Dropout','forward',0,0,0,32768,24576,2048,'2,048 values moved, no arithmetic; 1 x 2,048 output values, elementwise; 1 x 2,048 output values, elementwise',4096,1,10);
INSERT INTO "layer_call" VALUES(5,'fc2','Linear','forward',20480,40960,1290,13352,640,160,'M x K x N = 16 x 128 x 10 = 20,480 MAC = 40,960 FLOP',160,1,13);
INSERT INTO "layer_call" VALUES(5,'log_softmax','LogSoftmax','forward',0,0,0,640,640,160,'5 x 160 output values, elementwise',800,1,14);
INSERT INTO "layer_call" VALUES(5,'','nll_loss','forward',0,0,0,768,8,1,'1 x 160 input values, elementwise',160,1,15);
INSERT INTO "layer_call" VALUES(5,'','ones_like','forward',0,0,0,4,4,1,'1 values moved, no arithmetic',0,1,16);
INSERT INTO "layer_call" VALUES(5,'','nll_loss','grad_input',0,0,0,776,640,160,'1 x 160 input values, elementwise',160,1,17);
INSERT INTO "layer_call" VALUES(5,'log_softmax','LogSoftmax','grad_input',0,0,0,1280,640,160,'4 x 160 output values, elementwise',640,1,18);
INSERT INTO "layer_call" VALUES(5,'fc2','Linear','grad_input',20480,40960,1290,5760,8192,2048,'M x K x N = 16 x 10 x 128 = 20,480 MAC = 40,960 FLOP',0,1,19);
INSERT INTO "layer_call" VALUES(5,'fc2','Linear','grad_weight',20480,40960,1290,8832,5120,1280,'M x K x N = 10 x 16 x 128 = 20,480 MAC = 40,960 FLOP',0,1,20);
INSERT INTO "layer_call" VALUES(5,'fc2','Linear','grad_bias',0,0,1290,640,40,10,'1 x 160 input values, elementwise',160,1,21);
INSERT INTO "layer_call" VALUES(5,'dropout2','Dropout','grad_input',0,0,0,16384,8192,2048,'1 x 2,048 output values, elementwise',2048,1,22);
INSERT INTO "layer_call" VALUES(5,'relu3','ReLU','grad_input',0,0,0,16384,8192,2048,'1 x 2,048 output values, elementwise',2048,1,23);
INSERT INTO "layer_call" VALUES(5,'fc1','Linear','grad_input',18874368,37748736,1179776,4726784,589824,147456,'M x K x N = 16 x 128 x 9,216 = 18,874,368 MAC = 37,748,736 FLOP',0,1,24);
INSERT INTO "layer_call" VALUES(5,'fc1','Linear','grad_weight',18874368,37748736,1179776,598016,4718592,1179648,'M x K x N = 128 x 16 x 9,216 = 18,874,368 MAC = 37,748,736 FLOP',0,1,25);
INSERT INTO "layer_call" VALUES(5,'fc1','Linear','grad_bias',0,0,1179776,8192,512,128,'1 x 2,048 input values, elementwise',2048,1,26);
INSERT INTO "layer_call" VALUES(5,'dropout1','Dropout','grad_input',0,0,0,1179648,589824,147456,'1 x 147,456 output values, elementwise',147456,1,27);
INSERT INTO "layer_call" VALUES(5,'pool','MaxPool2d','grad_input',0,0,0,4128768,2359296,589824,'1 x 589,824 input values, elementwise',589824,1,28);
INSERT INTO "layer_call" VALUES(5,'relu2','ReLU','grad_input',0,0,0,4718592,2359296,589824,'1 x 589,824 output values, elementwise',589824,1,29);
INSERT INTO "layer_call" VALUES(5,'conv2','Conv2d','grad_input',169869312,339738624,18496,2433024,1384448,346112,'as forward: N x P x Q x K x (C/g x R x S) = 16 x 24 x 24 x 64 x (32 x 3 x 3) = 169,869,312 MAC = 339,738,624 FLOP',0,1,30);
INSERT INTO "layer_call" VALUES(5,'conv2','Conv2d','grad_weight',169869312,339738624,18496,3743744,73728,18432,'as forward: N x P x Q x K x (C/g x R x S) = 16 x 24 x 24 x 64 x (32 x 3 x 3) = 169,869,312 MAC = 339,738,624 FLOP',0,1,30);
INSERT INTO "layer_call" VALUES(5,'conv2','Conv2d','grad_bias',0,0,18496,2359296,256,64,'sum of grad_output over batch and positions: 589,824 additions, no multiply-adds',589824,1,30);
INSERT INTO "layer_call" VALUES(5,'relu1','ReLU','grad_input',0,0,0,2768896,1384448,346112,'1 x 346,112 output values, elementwise',346112,1,31);
INSERT INTO "layer_call" VALUES(5,'conv1','Conv2d','grad_weight',3115008,6230016,320,1434624,1152,288,'as forward: N x P x Q x K x (C/g x R x S) = 16 x 26 x 26 x 32 x (1 x 3 x 3) = 3,115,008 MAC = 6,230,016 FLOP',0,1,32);
INSERT INTO "layer_call" VALUES(5,'conv1','Conv2d','grad_bias',0,0,320,1384448,128,32,'sum of grad_output over batch and positions: 346,112 additions, no multiply-adds',346112,1,32);
INSERT INTO "layer_call" VALUES(5,'conv1','Conv2d','optimizer',0,0,320,5120,3840,320,'13 x 288 values, 2 of state each, elementwise; 13 x 32 values, 2 of state each, elementwise',4160,1,33);
INSERT INTO "layer_call" VALUES(5,'conv2','Conv2d','optimizer',0,0,18496,295936,221952,18496,'13 x 18,432 values, 2 of state each, elementwise; 13 x 64 values, 2 of state each, elementwise',240448,1,35);
INSERT INTO "layer_call" VALUES(5,'fc1','Linear','optimizer',0,0,1179776,18876416,14157312,1179776,'13 x 1,179,648 values, 2 of state each, elementwise; 13 x 128 values, 2 of state each, elementwise',15337088,1,37);
INSERT INTO "layer_call" VALUES(5,'fc2','Linear','optimizer',0,0,1290,20640,15480,1290,'13 x 1,280 values, 2 of state each, elementwise; 13 x 10 values, 2 of state each, elementwise',16770,1,39);
CREATE TABLE layer_time (         -- how long one layer took in one direction, in steps of their own (perfctl bench)
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    layer TEXT NOT NULL,          -- dotted module path, (model) for the model between its layers; -; NULL: never
    kind TEXT NOT NULL,           -- class of the module; -; NULL: never
    direction TEXT NOT NULL,      -- forward, backward, grad_input, grad_weight, recompute; -; NULL: never
    duration_ns INTEGER NOT NULL, -- median over the steps, without layers within it; ns; NULL: never
    low_ns INTEGER NOT NULL,      -- of the fastest step; ns; NULL: never
    high_ns INTEGER NOT NULL,     -- of the slowest step; ns; NULL: never
    steps INTEGER NOT NULL        -- how many steps; count; NULL: never
);
CREATE TABLE memory (             -- one memory figure
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    moment TEXT NOT NULL,         -- before, after, peak; -; NULL: never
    quantity TEXT NOT NULL,       -- allocated, reserved, host_available, host_resident, device_free, device_total; -; NULL: never
    bytes INTEGER                 -- size; byte; NULL: not collected
);
INSERT INTO "memory" VALUES(3,'peak','allocated',8192);
INSERT INTO "memory" VALUES(3,'peak','reserved',20971520);
INSERT INTO "memory" VALUES(5,'before','host_available',23771893760);
INSERT INTO "memory" VALUES(5,'before','host_resident',809218048);
INSERT INTO "memory" VALUES(5,'peak','host_resident',889585664);
INSERT INTO "memory" VALUES(5,'after','host_available',23727955968);
INSERT INTO "memory" VALUES(5,'after','host_resident',889585664);
CREATE TABLE metric (             -- one metric of a run, for however many launches; read it through counter
    id INTEGER PRIMARY KEY,       -- number of the row; -; NULL: never
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- name of the metric; -; NULL: never
    unit TEXT,                    -- base unit; -; NULL: a plain count or ratio
    section TEXT                  -- section or body item that printed it; -; NULL: not stated
);
INSERT INTO "metric" VALUES(1,1,'sm__sass_thread_inst_executed_op_ffma_pred_on.sum','inst','Command line profiler metrics');
CREATE TABLE metric_value (       -- one metric of one launch, its name apart; read it through counter
    id INTEGER PRIMARY KEY,       -- number of the row, in the order of the report; -; NULL: never
    kernel_id INTEGER NOT NULL REFERENCES kernel_launch(id) ON DELETE CASCADE, -- the launch; -; NULL: never
    metric_id INTEGER NOT NULL,   -- id of its metric; -; NULL: never
    value NUMERIC,                -- in the metric's unit; base units; NULL: printed as n/a, or as text
    text TEXT                     -- a value that is no number; -; NULL: it is one, or there was none
);
INSERT INTO "metric_value" VALUES(1,1,1,1000,NULL);
INSERT INTO "metric_value" VALUES(2,2,1,2000,NULL);
INSERT INTO "metric_value" VALUES(3,3,1,3000,NULL);
INSERT INTO "metric_value" VALUES(4,4,1,4000,NULL);
INSERT INTO "metric_value" VALUES(5,5,1,5000,NULL);
INSERT INTO "metric_value" VALUES(6,6,1,6000,NULL);
CREATE TABLE op_shape (           -- what one operation saw when a step ran; what pen and paper starts from
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    position INTEGER NOT NULL,    -- order of first call; -; NULL: never
    layer TEXT NOT NULL,          -- dotted module path, empty outside of modules; -; NULL: never
    op TEXT NOT NULL,             -- dispatcher name; -; NULL: never
    direction TEXT NOT NULL,      -- forward, backward or optimizer; -; NULL: never
    record TEXT NOT NULL          -- kind, shapes, dtypes, attributes, parameters, calls; JSON; NULL: never
);
INSERT INTO "op_shape" VALUES(5,0,'conv1','aten.convolution','forward','{"attributes": {"bias": true, "dilation": [1, 1], "groups": 1, "padding": [0, 0], "stride": [1, 1], "transposed": false}, "calls": 1, "dtypes": ["float32", "float32", "float32", "float32"], "inputs": [[16, 1, 28, 28], [32, 1, 3, 3], [32], null, null, null, null, null, null], "kind": "Conv2d", "outputs": [[16, 32, 26, 26]], "parameters": 320}');
INSERT INTO "op_shape" VALUES(5,1,'relu1','aten.relu','forward','{"attributes": {"pointwise": true}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[16, 32, 26, 26]], "kind": "ReLU", "outputs": [[16, 32, 26, 26]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,2,'conv2','aten.convolution','forward','{"attributes": {"bias": true, "dilation": [1, 1], "groups": 1, "padding": [0, 0], "stride": [1, 1], "transposed": false}, "calls": 1, "dtypes": ["float32", "float32", "float32", "float32"], "inputs": [[16, 32, 26, 26], [64, 32, 3, 3], [64], null, null, null, null, null, null], "kind": "Conv2d", "outputs": [[16, 64, 24, 24]], "parameters": 18496}');
INSERT INTO "op_shape" VALUES(5,3,'relu2','aten.relu','forward','{"attributes": {"pointwise": true}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[16, 64, 24, 24]], "kind": "ReLU", "outputs": [[16, 64, 24, 24]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,4,'pool','aten.max_pool2d_with_indices','forward','{"attributes": {"kernel_size": [2, 2], "stride": [2, 2]}, "calls": 1, "dtypes": ["float32", "float32", "int64"], "inputs": [[16, 64, 24, 24], null, null], "kind": "MaxPool2d", "outputs": [[16, 64, 12, 12], [16, 64, 12, 12]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,5,'dropout1','aten.bernoulli_','forward','{"attributes": {}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[16, 64, 12, 12], null], "kind": "Dropout", "outputs": [[16, 64, 12, 12]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,6,'dropout1','aten.div_','forward','{"attributes": {"pointwise": true}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[16, 64, 12, 12], null], "kind": "Dropout", "outputs": [[16, 64, 12, 12]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,7,'dropout1','aten.mul','forward','{"attributes": {"pointwise": true}, "calls": 1, "dtypes": ["float32", "float32", "float32"], "inputs": [[16, 64, 12, 12], [16, 64, 12, 12]], "kind": "Dropout", "outputs": [[16, 64, 12, 12]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,8,'fc1','aten.addmm','forward','{"attributes": {}, "calls": 1, "dtypes": ["float32", "float32", "float32", "float32"], "inputs": [[128], [16, 9216], [9216, 128]], "kind": "Linear", "outputs": [[16, 128]], "parameters": 1179776}');
INSERT INTO "op_shape" VALUES(5,9,'relu3','aten.relu','forward','{"attributes": {"pointwise": true}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[16, 128]], "kind": "ReLU", "outputs": [[16, 128]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,10,'dropout2','aten.bernoulli_','forward','{"attributes": {}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[16, 128]], "kind": "Dropout", "outputs": [[16, 128]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,11,'dropout2','aten.div_','forward','{"attributes": {"pointwise": true}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[16, 128], null], "kind": "Dropout", "outputs": [[16, 128]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,12,'dropout2','aten.mul','forward','{"attributes": {"pointwise": true}, "calls": 1, "dtypes": ["float32", "float32", "float32"], "inputs": [[16, 128], [16, 128]], "kind": "Dropout", "outputs": [[16, 128]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,13,'fc2','aten.addmm','forward','{"attributes": {}, "calls": 1, "dtypes": ["float32", "float32", "float32", "float32"], "inputs": [[10], [16, 128], [128, 10]], "kind": "Linear", "outputs": [[16, 10]], "parameters": 1290}');
INSERT INTO "op_shape" VALUES(5,14,'log_softmax','aten._log_softmax','forward','{"attributes": {}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[16, 10], null, null], "kind": "LogSoftmax", "outputs": [[16, 10]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,15,'','aten.nll_loss_forward','forward','{"attributes": {"functional": "aten.nll_loss_forward"}, "calls": 1, "dtypes": ["float32", "int64", "float32", "float32"], "inputs": [[16, 10], [16], null, null, null], "kind": "", "outputs": [[], []], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,16,'','aten.ones_like','forward','{"attributes": {"functional": "aten.ones_like"}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[]], "kind": "", "outputs": [[]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,17,'','aten.nll_loss_backward','backward','{"attributes": {"functional": "aten.nll_loss_forward", "role": "grad_input"}, "calls": 1, "dtypes": ["float32", "float32", "int64", "float32", "float32"], "inputs": [[], [16, 10], [16], null, null, null, []], "kind": "", "outputs": [[16, 10]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,18,'log_softmax','aten._log_softmax_backward_data','backward','{"attributes": {"role": "grad_input"}, "calls": 1, "dtypes": ["float32", "float32", "float32"], "inputs": [[16, 10], [16, 10], null, null], "kind": "LogSoftmax", "outputs": [[16, 10]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,19,'fc2','aten.mm','backward','{"attributes": {"role": "grad_input"}, "calls": 1, "dtypes": ["float32", "float32", "float32"], "inputs": [[16, 10], [10, 128]], "kind": "Linear", "outputs": [[16, 128]], "parameters": 1290}');
INSERT INTO "op_shape" VALUES(5,20,'fc2','aten.mm','backward','{"attributes": {"role": "grad_weight"}, "calls": 1, "dtypes": ["float32", "float32", "float32"], "inputs": [[10, 16], [16, 128]], "kind": "Linear", "outputs": [[10, 128]], "parameters": 1290}');
INSERT INTO "op_shape" VALUES(5,21,'fc2','aten.sum','backward','{"attributes": {"role": "grad_bias"}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[16, 10], null, null], "kind": "Linear", "outputs": [[1, 10]], "parameters": 1290}');
INSERT INTO "op_shape" VALUES(5,22,'dropout2','aten.mul','backward','{"attributes": {"pointwise": true, "role": "grad_input"}, "calls": 1, "dtypes": ["float32", "float32", "float32"], "inputs": [[16, 128], [16, 128]], "kind": "Dropout", "outputs": [[16, 128]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,23,'relu3','aten.threshold_backward','backward','{"attributes": {"pointwise": true, "role": "grad_input"}, "calls": 1, "dtypes": ["float32", "float32", "float32"], "inputs": [[16, 128], [16, 128], null], "kind": "ReLU", "outputs": [[16, 128]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,24,'fc1','aten.mm','backward','{"attributes": {"role": "grad_input"}, "calls": 1, "dtypes": ["float32", "float32", "float32"], "inputs": [[16, 128], [128, 9216]], "kind": "Linear", "outputs": [[16, 9216]], "parameters": 1179776}');
INSERT INTO "op_shape" VALUES(5,25,'fc1','aten.mm','backward','{"attributes": {"role": "grad_weight"}, "calls": 1, "dtypes": ["float32", "float32", "float32"], "inputs": [[128, 16], [16, 9216]], "kind": "Linear", "outputs": [[128, 9216]], "parameters": 1179776}');
INSERT INTO "op_shape" VALUES(5,26,'fc1','aten.sum','backward','{"attributes": {"role": "grad_bias"}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[16, 128], null, null], "kind": "Linear", "outputs": [[1, 128]], "parameters": 1179776}');
INSERT INTO "op_shape" VALUES(5,27,'dropout1','aten.mul','backward','{"attributes": {"pointwise": true, "role": "grad_input"}, "calls": 1, "dtypes": ["float32", "float32", "float32"], "inputs": [[16, 64, 12, 12], [16, 64, 12, 12]], "kind": "Dropout", "outputs": [[16, 64, 12, 12]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,28,'pool','aten.max_pool2d_with_indices_backward','backward','{"attributes": {"role": "grad_input"}, "calls": 1, "dtypes": ["float32", "float32", "int64", "float32"], "inputs": [[16, 64, 12, 12], [16, 64, 24, 24], null, null, null, null, null, [16, 64, 12, 12]], "kind": "MaxPool2d", "outputs": [[16, 64, 24, 24]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,29,'relu2','aten.threshold_backward','backward','{"attributes": {"pointwise": true, "role": "grad_input"}, "calls": 1, "dtypes": ["float32", "float32", "float32"], "inputs": [[16, 64, 24, 24], [16, 64, 24, 24], null], "kind": "ReLU", "outputs": [[16, 64, 24, 24]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,30,'conv2','aten.convolution_backward','backward','{"attributes": {"dilation": [1, 1], "groups": 1, "output_mask": [true, true, true], "padding": [0, 0], "role": "grad_input", "stride": [1, 1], "transposed": false}, "calls": 1, "dtypes": ["float32", "float32", "float32", "float32", "float32", "float32"], "inputs": [[16, 64, 24, 24], [16, 32, 26, 26], [64, 32, 3, 3], null, null, null, null, null, null, null, null], "kind": "Conv2d", "outputs": [[16, 32, 26, 26], [64, 32, 3, 3], [64]], "parameters": 18496}');
INSERT INTO "op_shape" VALUES(5,31,'relu1','aten.threshold_backward','backward','{"attributes": {"pointwise": true, "role": "grad_input"}, "calls": 1, "dtypes": ["float32", "float32", "float32"], "inputs": [[16, 32, 26, 26], [16, 32, 26, 26], null], "kind": "ReLU", "outputs": [[16, 32, 26, 26]], "parameters": 0}');
INSERT INTO "op_shape" VALUES(5,32,'conv1','aten.convolution_backward','backward','{"attributes": {"dilation": [1, 1], "groups": 1, "output_mask": [false, true, true], "padding": [0, 0], "role": "grad_input", "stride": [1, 1], "transposed": false}, "calls": 1, "dtypes": ["float32", "float32", "float32", "float32", "float32"], "inputs": [[16, 32, 26, 26], [16, 1, 28, 28], [32, 1, 3, 3], null, null, null, null, null, null, null, null], "kind": "Conv2d", "outputs": [null, [32, 1, 3, 3], [32]], "parameters": 320}');
INSERT INTO "op_shape" VALUES(5,33,'conv1','optim.Adadelta','optimizer','{"attributes": {"weight_decay": 0}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[32, 1, 3, 3]], "kind": "Conv2d", "outputs": [[32, 1, 3, 3]], "parameters": 320}');
INSERT INTO "op_shape" VALUES(5,34,'conv1','optim.Adadelta','optimizer','{"attributes": {"weight_decay": 0}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[32]], "kind": "Conv2d", "outputs": [[32]], "parameters": 320}');
INSERT INTO "op_shape" VALUES(5,35,'conv2','optim.Adadelta','optimizer','{"attributes": {"weight_decay": 0}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[64, 32, 3, 3]], "kind": "Conv2d", "outputs": [[64, 32, 3, 3]], "parameters": 18496}');
INSERT INTO "op_shape" VALUES(5,36,'conv2','optim.Adadelta','optimizer','{"attributes": {"weight_decay": 0}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[64]], "kind": "Conv2d", "outputs": [[64]], "parameters": 18496}');
INSERT INTO "op_shape" VALUES(5,37,'fc1','optim.Adadelta','optimizer','{"attributes": {"weight_decay": 0}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[128, 9216]], "kind": "Linear", "outputs": [[128, 9216]], "parameters": 1179776}');
INSERT INTO "op_shape" VALUES(5,38,'fc1','optim.Adadelta','optimizer','{"attributes": {"weight_decay": 0}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[128]], "kind": "Linear", "outputs": [[128]], "parameters": 1179776}');
INSERT INTO "op_shape" VALUES(5,39,'fc2','optim.Adadelta','optimizer','{"attributes": {"weight_decay": 0}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[10, 128]], "kind": "Linear", "outputs": [[10, 128]], "parameters": 1290}');
INSERT INTO "op_shape" VALUES(5,40,'fc2','optim.Adadelta','optimizer','{"attributes": {"weight_decay": 0}, "calls": 1, "dtypes": ["float32", "float32"], "inputs": [[10]], "kind": "Linear", "outputs": [[10]], "parameters": 1290}');
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
INSERT INTO "operation" VALUES(3,'aten::conv2d','cpu_op',1,120000,19995,25001,3072,NULL,'conv1','forward');
INSERT INTO "operation" VALUES(3,'aten::convolution','cpu_op',1,100005,100005,25001,4096,NULL,'conv1','forward');
INSERT INTO "operation" VALUES(3,'aten::relu','cpu_op',1,10000,10000,3000,0,NULL,NULL,NULL);
INSERT INTO "operation" VALUES(3,'aten::convolution_backward','cpu_op',1,180000,180000,40250,0,NULL,'conv1','backward');
INSERT INTO "operation" VALUES(4,'/perfctl:step:2/conv1:forward/conv2d','conv2d',3,9000,NULL,300,NULL,NULL,'conv1','forward');
INSERT INTO "operation" VALUES(4,'features.0','linear',3,6000,NULL,400,NULL,NULL,'features.0','backward');
INSERT INTO "operation" VALUES(4,'/module/net::_call_impl/net::forward/relu','relu',3,NULL,NULL,0,NULL,NULL,'net','forward');
INSERT INTO "operation" VALUES(5,'aten::to','cpu_op',6,6439,6439,NULL,0,NULL,NULL,NULL);
INSERT INTO "operation" VALUES(5,'aten::conv2d','cpu_op',3,27098727,21653,NULL,4153344,NULL,'conv1','forward');
INSERT INTO "operation" VALUES(5,'aten::convolution','cpu_op',3,27077074,130072,NULL,4153344,NULL,'conv1','forward');
INSERT INTO "operation" VALUES(5,'aten::_convolution','cpu_op',3,26947002,54051,NULL,4153344,NULL,'conv1','forward');
INSERT INTO "operation" VALUES(5,'aten::mkldnn_convolution','cpu_op',3,26892951,26818811,NULL,4153344,NULL,'conv1','forward');
INSERT INTO "operation" VALUES(5,'aten::empty','cpu_op',6,33259,33259,NULL,4153344,NULL,'conv1','forward');
INSERT INTO "operation" VALUES(5,'aten::as_strided_','cpu_op',3,30756,30756,NULL,0,NULL,'conv1','forward');
INSERT INTO "operation" VALUES(5,'aten::resize_','cpu_op',3,10125,10125,NULL,0,NULL,'conv1','forward');
INSERT INTO "operation" VALUES(5,'aten::relu','cpu_op',3,7436365,75563,NULL,4153344,NULL,'relu1','forward');
INSERT INTO "operation" VALUES(5,'aten::clamp_min','cpu_op',3,7360802,7360802,NULL,4153344,NULL,'relu1','forward');
INSERT INTO "operation" VALUES(5,'aten::conv2d','cpu_op',3,24004875,13771,NULL,7077888,NULL,'conv2','forward');
INSERT INTO "operation" VALUES(5,'aten::convolution','cpu_op',3,23991104,61261,NULL,7077888,NULL,'conv2','forward');
INSERT INTO "operation" VALUES(5,'aten::_convolution','cpu_op',3,23929843,32608,NULL,7077888,NULL,'conv2','forward');
INSERT INTO "operation" VALUES(5,'aten::mkldnn_convolution','cpu_op',3,23897235,23844635,NULL,7077888,NULL,'conv2','forward');
INSERT INTO "operation" VALUES(5,'aten::empty','cpu_op',6,29454,29454,NULL,7077888,NULL,'conv2','forward');
INSERT INTO "operation" VALUES(5,'aten::as_strided_','cpu_op',3,17857,17857,NULL,0,NULL,'conv2','forward');
INSERT INTO "operation" VALUES(5,'aten::resize_','cpu_op',3,5289,5289,NULL,0,NULL,'conv2','forward');
INSERT INTO "operation" VALUES(5,'aten::relu','cpu_op',3,206238,41212,NULL,7077888,NULL,'relu2','forward');
INSERT INTO "operation" VALUES(5,'aten::clamp_min','cpu_op',3,165026,165026,NULL,7077888,NULL,'relu2','forward');
INSERT INTO "operation" VALUES(5,'aten::max_pool2d','cpu_op',3,6360872,16754,NULL,5308416,NULL,'pool','forward');
INSERT INTO "operation" VALUES(5,'aten::max_pool2d_with_indices','cpu_op',3,6344118,6344118,NULL,5308416,NULL,'pool','forward');
INSERT INTO "operation" VALUES(5,'aten::dropout','cpu_op',3,7541693,62113,NULL,3538944,NULL,'dropout1','forward');
INSERT INTO "operation" VALUES(5,'aten::empty_like','cpu_op',3,40481,20933,NULL,1769472,NULL,'dropout1','forward');
INSERT INTO "operation" VALUES(5,'aten::empty_strided','cpu_op',6,28361,28361,NULL,1769484,NULL,'dropout1','forward');
INSERT INTO "operation" VALUES(5,'aten::bernoulli_','cpu_op',3,7100945,7100945,NULL,0,NULL,'dropout1','forward');
INSERT INTO "operation" VALUES(5,'aten::div_','cpu_op',3,219687,152227,NULL,0,NULL,'dropout1','forward');
INSERT INTO "operation" VALUES(5,'aten::to','cpu_op',3,67460,8431,NULL,12,NULL,'dropout1','forward');
INSERT INTO "operation" VALUES(5,'aten::_to_copy','cpu_op',3,59029,31518,NULL,12,NULL,'dropout1','forward');
INSERT INTO "operation" VALUES(5,'aten::copy_','cpu_op',3,18698,18698,NULL,0,NULL,'dropout1','forward');
INSERT INTO "operation" VALUES(5,'aten::mul','cpu_op',3,118467,118467,NULL,1769472,NULL,'dropout1','forward');
INSERT INTO "operation" VALUES(5,'aten::flatten','cpu_op',3,61952,17967,NULL,0,NULL,'flatten','forward');
INSERT INTO "operation" VALUES(5,'aten::view','cpu_op',3,43985,43985,NULL,0,NULL,'flatten','forward');
INSERT INTO "operation" VALUES(5,'aten::linear','cpu_op',3,1496150,19810,NULL,24576,NULL,'fc1','forward');
INSERT INTO "operation" VALUES(5,'aten::t','cpu_op',3,58116,29083,NULL,0,NULL,'fc1','forward');
INSERT INTO "operation" VALUES(5,'aten::transpose','cpu_op',3,29033,15663,NULL,0,NULL,'fc1','forward');
INSERT INTO "operation" VALUES(5,'aten::as_strided','cpu_op',6,15513,15513,NULL,0,NULL,'fc1','forward');
INSERT INTO "operation" VALUES(5,'aten::addmm','cpu_op',3,1418224,1384457,NULL,24576,NULL,'fc1','forward');
INSERT INTO "operation" VALUES(5,'aten::expand','cpu_op',3,13990,11847,NULL,0,NULL,'fc1','forward');
INSERT INTO "operation" VALUES(5,'aten::copy_','cpu_op',3,16113,16113,NULL,0,NULL,'fc1','forward');
INSERT INTO "operation" VALUES(5,'aten::resolve_conj','cpu_op',6,3664,3664,NULL,0,NULL,'fc1','forward');
INSERT INTO "operation" VALUES(5,'aten::relu','cpu_op',3,8112183,43955,NULL,24576,NULL,'relu3','forward');
INSERT INTO "operation" VALUES(5,'aten::clamp_min','cpu_op',3,8068228,8068228,NULL,24576,NULL,'relu3','forward');
INSERT INTO "operation" VALUES(5,'aten::dropout','cpu_op',3,232737,27892,NULL,49152,NULL,'dropout2','forward');
INSERT INTO "operation" VALUES(5,'aten::empty_like','cpu_op',3,28442,17245,NULL,24576,NULL,'dropout2','forward');
INSERT INTO "operation" VALUES(5,'aten::empty_strided','cpu_op',6,13660,13660,NULL,24588,NULL,'dropout2','forward');
INSERT INTO "operation" VALUES(5,'aten::bernoulli_','cpu_op',3,84585,84585,NULL,0,NULL,'dropout2','forward');
INSERT INTO "operation" VALUES(5,'aten::div_','cpu_op',3,71858,41823,NULL,0,NULL,'dropout2','forward');
INSERT INTO "operation" VALUES(5,'aten::to','cpu_op',3,30035,5980,NULL,12,NULL,'dropout2','forward');
INSERT INTO "operation" VALUES(5,'aten::_to_copy','cpu_op',3,24055,14102,NULL,12,NULL,'dropout2','forward');
INSERT INTO "operation" VALUES(5,'aten::copy_','cpu_op',3,7490,7490,NULL,0,NULL,'dropout2','forward');
INSERT INTO "operation" VALUES(5,'aten::mul','cpu_op',3,19960,19960,NULL,24576,NULL,'dropout2','forward');
INSERT INTO "operation" VALUES(5,'aten::linear','cpu_op',3,3698694,9976,NULL,1920,NULL,'fc2','forward');
INSERT INTO "operation" VALUES(5,'aten::t','cpu_op',3,38436,21040,NULL,0,NULL,'fc2','forward');
INSERT INTO "operation" VALUES(5,'aten::transpose','cpu_op',3,17396,9404,NULL,0,NULL,'fc2','forward');
INSERT INTO "operation" VALUES(5,'aten::as_strided','cpu_op',6,9505,9505,NULL,0,NULL,'fc2','forward');
INSERT INTO "operation" VALUES(5,'aten::addmm','cpu_op',3,3650282,3635371,NULL,1920,NULL,'fc2','forward');
INSERT INTO "operation" VALUES(5,'aten::expand','cpu_op',3,7892,6379,NULL,0,NULL,'fc2','forward');
INSERT INTO "operation" VALUES(5,'aten::copy_','cpu_op',3,6099,6099,NULL,0,NULL,'fc2','forward');
INSERT INTO "operation" VALUES(5,'aten::resolve_conj','cpu_op',6,920,920,NULL,0,NULL,'fc2','forward');
INSERT INTO "operation" VALUES(5,'aten::log_softmax','cpu_op',3,62183,12148,NULL,1920,NULL,'log_softmax','forward');
INSERT INTO "operation" VALUES(5,'aten::_log_softmax','cpu_op',3,50035,50035,NULL,1920,NULL,'log_softmax','forward');
INSERT INTO "operation" VALUES(5,'aten::nll_loss_nd','cpu_op',3,65277,15082,NULL,24,NULL,NULL,NULL);
INSERT INTO "operation" VALUES(5,'aten::nll_loss','cpu_op',3,50195,12810,NULL,24,NULL,NULL,NULL);
INSERT INTO "operation" VALUES(5,'aten::nll_loss_forward','cpu_op',3,37385,37385,NULL,24,NULL,NULL,NULL);
INSERT INTO "operation" VALUES(5,'aten::ones_like','cpu_op',3,27021,11139,NULL,12,NULL,NULL,NULL);
INSERT INTO "operation" VALUES(5,'aten::empty_like','cpu_op',3,9674,5598,NULL,12,NULL,NULL,NULL);
INSERT INTO "operation" VALUES(5,'aten::empty_strided','cpu_op',3,4076,4076,NULL,12,NULL,NULL,NULL);
INSERT INTO "operation" VALUES(5,'aten::fill_','cpu_op',3,6208,6208,NULL,0,NULL,NULL,NULL);
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: NllLossBackward0','cpu_op',3,87170,19990,NULL,1908,NULL,NULL,NULL);
INSERT INTO "operation" VALUES(5,'NllLossBackward0','cpu_op',3,67180,25297,NULL,1920,NULL,NULL,NULL);
INSERT INTO "operation" VALUES(5,'aten::nll_loss_backward','cpu_op',3,41883,38068,NULL,1920,NULL,NULL,NULL);
INSERT INTO "operation" VALUES(5,'aten::zero_','cpu_op',3,3815,3815,NULL,0,NULL,NULL,NULL);
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: LogSoftmaxBackward0','cpu_op',3,118476,33119,NULL,-1920,NULL,'log_softmax','backward');
INSERT INTO "operation" VALUES(5,'LogSoftmaxBackward0','cpu_op',3,43135,17286,NULL,1920,NULL,'log_softmax','backward');
INSERT INTO "operation" VALUES(5,'aten::_log_softmax_backward_data','cpu_op',3,25849,25849,NULL,1920,NULL,'log_softmax','backward');
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: AddmmBackward0','cpu_op',3,273308,22634,NULL,13560,NULL,'fc2','backward');
INSERT INTO "operation" VALUES(5,'AddmmBackward0','cpu_op',3,132378,29092,NULL,39936,NULL,'fc2','backward');
INSERT INTO "operation" VALUES(5,'aten::t','cpu_op',12,41895,19443,NULL,0,NULL,'fc2','backward');
INSERT INTO "operation" VALUES(5,'aten::transpose','cpu_op',12,22452,15311,NULL,0,NULL,'fc2','backward');
INSERT INTO "operation" VALUES(5,'aten::as_strided','cpu_op',12,7141,7141,NULL,0,NULL,'fc2','backward');
INSERT INTO "operation" VALUES(5,'aten::mm','cpu_op',6,67381,66329,NULL,39936,NULL,'fc2','backward');
INSERT INTO "operation" VALUES(5,'aten::resolve_conj','cpu_op',15,1052,1052,NULL,0,NULL,'fc2','backward');
INSERT INTO "operation" VALUES(5,'aten::sum','cpu_op',3,64576,53661,NULL,120,NULL,'fc2','backward');
INSERT INTO "operation" VALUES(5,'aten::fill_','cpu_op',3,10915,10915,NULL,0,NULL,'fc2','backward');
INSERT INTO "operation" VALUES(5,'aten::view','cpu_op',3,13950,13950,NULL,0,NULL,'fc2','backward');
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: torch::autograd::AccumulateGrad','cpu_op',6,96064,22474,NULL,0,NULL,'fc2','backward');
INSERT INTO "operation" VALUES(5,'torch::autograd::AccumulateGrad','cpu_op',6,36613,21542,NULL,0,NULL,'fc2','backward');
INSERT INTO "operation" VALUES(5,'aten::detach','cpu_op',6,15071,5968,NULL,0,NULL,'fc2','backward');
INSERT INTO "operation" VALUES(5,'detach','cpu_op',6,9103,9103,NULL,0,NULL,'fc2','backward');
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: TBackward0','cpu_op',3,42344,13141,NULL,0,NULL,'fc2','backward');
INSERT INTO "operation" VALUES(5,'TBackward0','cpu_op',3,10615,4625,NULL,0,NULL,'fc2','backward');
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: MulBackward0','cpu_op',3,53970,14591,NULL,-24576,NULL,'dropout2','backward');
INSERT INTO "operation" VALUES(5,'MulBackward0','cpu_op',3,21942,8612,NULL,24576,NULL,'dropout2','backward');
INSERT INTO "operation" VALUES(5,'aten::mul','cpu_op',3,13330,13330,NULL,24576,NULL,'dropout2','backward');
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: ReluBackward0','cpu_op',3,65969,13451,NULL,-24576,NULL,'relu3','backward');
INSERT INTO "operation" VALUES(5,'ReluBackward0','cpu_op',3,37507,12350,NULL,24576,NULL,'relu3','backward');
INSERT INTO "operation" VALUES(5,'aten::threshold_backward','cpu_op',3,25157,25157,NULL,24576,NULL,'relu3','backward');
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: AddmmBackward0','cpu_op',3,15064808,92338,NULL,14132736,NULL,'fc1','backward');
INSERT INTO "operation" VALUES(5,'AddmmBackward0','cpu_op',3,14644311,61491,NULL,15925248,NULL,'fc1','backward');
INSERT INTO "operation" VALUES(5,'aten::t','cpu_op',12,86099,34983,NULL,0,NULL,'fc1','backward');
INSERT INTO "operation" VALUES(5,'aten::transpose','cpu_op',12,51116,34862,NULL,0,NULL,'fc1','backward');
INSERT INTO "operation" VALUES(5,'aten::as_strided','cpu_op',12,16254,16254,NULL,0,NULL,'fc1','backward');
INSERT INTO "operation" VALUES(5,'aten::mm','cpu_op',6,14509129,14508518,NULL,15925248,NULL,'fc1','backward');
INSERT INTO "operation" VALUES(5,'aten::resolve_conj','cpu_op',15,611,611,NULL,0,NULL,'fc1','backward');
INSERT INTO "operation" VALUES(5,'aten::sum','cpu_op',3,83635,69905,NULL,1536,NULL,'fc1','backward');
INSERT INTO "operation" VALUES(5,'aten::fill_','cpu_op',3,13730,13730,NULL,0,NULL,'fc1','backward');
INSERT INTO "operation" VALUES(5,'aten::view','cpu_op',3,12999,12999,NULL,0,NULL,'fc1','backward');
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: torch::autograd::AccumulateGrad','cpu_op',6,215903,81723,NULL,0,NULL,'fc1','backward');
INSERT INTO "operation" VALUES(5,'torch::autograd::AccumulateGrad','cpu_op',6,37726,20190,NULL,0,NULL,'fc1','backward');
INSERT INTO "operation" VALUES(5,'aten::detach','cpu_op',6,17536,5820,NULL,0,NULL,'fc1','backward');
INSERT INTO "operation" VALUES(5,'detach','cpu_op',6,11716,11716,NULL,0,NULL,'fc1','backward');
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: TBackward0','cpu_op',3,55954,16456,NULL,0,NULL,'fc1','backward');
INSERT INTO "operation" VALUES(5,'TBackward0','cpu_op',3,19810,7402,NULL,0,NULL,'fc1','backward');
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: ViewBackward0','cpu_op',3,52729,15613,NULL,0,NULL,'flatten','backward');
INSERT INTO "operation" VALUES(5,'ViewBackward0','cpu_op',3,18518,8632,NULL,0,NULL,'flatten','backward');
INSERT INTO "operation" VALUES(5,'aten::reshape','cpu_op',3,9886,5398,NULL,0,NULL,'flatten','backward');
INSERT INTO "operation" VALUES(5,'aten::view','cpu_op',3,4488,4488,NULL,0,NULL,'flatten','backward');
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: MulBackward0','cpu_op',3,178096,22194,NULL,-1769472,NULL,'dropout1','backward');
INSERT INTO "operation" VALUES(5,'MulBackward0','cpu_op',3,133789,12689,NULL,1769472,NULL,'dropout1','backward');
INSERT INTO "operation" VALUES(5,'aten::mul','cpu_op',3,121100,121100,NULL,1769472,NULL,'dropout1','backward');
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: MaxPool2DWithIndicesBackward0','cpu_op',3,641706,25128,NULL,1769472,NULL,'pool','backward');
INSERT INTO "operation" VALUES(5,'MaxPool2DWithIndicesBackward0','cpu_op',3,591331,21522,NULL,7077888,NULL,'pool','backward');
INSERT INTO "operation" VALUES(5,'aten::max_pool2d_with_indices_backward','cpu_op',3,569809,409881,NULL,7077888,NULL,'pool','backward');
INSERT INTO "operation" VALUES(5,'aten::zero_','cpu_op',3,159928,5448,NULL,0,NULL,'pool','backward');
INSERT INTO "operation" VALUES(5,'aten::fill_','cpu_op',3,154480,154480,NULL,0,NULL,'pool','backward');
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: ReluBackward0','cpu_op',3,799572,29224,NULL,-7077888,NULL,'relu2','backward');
INSERT INTO "operation" VALUES(5,'ReluBackward0','cpu_op',3,721074,18126,NULL,7077888,NULL,'relu2','backward');
INSERT INTO "operation" VALUES(5,'aten::threshold_backward','cpu_op',3,702948,702948,NULL,7077888,NULL,'relu2','backward');
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: ConvolutionBackward0','cpu_op',3,38960689,108491,NULL,-2702592,NULL,'conv2','backward');
INSERT INTO "operation" VALUES(5,'ConvolutionBackward0','cpu_op',3,38547323,44367,NULL,4375296,NULL,'conv2','backward');
INSERT INTO "operation" VALUES(5,'aten::convolution_backward','cpu_op',3,38502956,34374163,NULL,4375296,NULL,'conv2','backward');
INSERT INTO "operation" VALUES(5,'aten::empty','cpu_op',12,51196,51196,NULL,4375296,NULL,'conv2','backward');
INSERT INTO "operation" VALUES(5,'aten::as_strided_','cpu_op',9,35622,35622,NULL,0,NULL,'conv2','backward');
INSERT INTO "operation" VALUES(5,'aten::resize_','cpu_op',9,4041975,4041975,NULL,0,NULL,'conv2','backward');
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: torch::autograd::AccumulateGrad','cpu_op',6,330832,126857,NULL,0,NULL,'conv2','backward');
INSERT INTO "operation" VALUES(5,'torch::autograd::AccumulateGrad','cpu_op',6,52437,29163,NULL,0,NULL,'conv2','backward');
INSERT INTO "operation" VALUES(5,'aten::detach','cpu_op',6,23274,8173,NULL,0,NULL,'conv2','backward');
INSERT INTO "operation" VALUES(5,'detach','cpu_op',6,15101,15101,NULL,0,NULL,'conv2','backward');
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: ReluBackward0','cpu_op',3,6644395,32328,NULL,-4153344,NULL,'relu1','backward');
INSERT INTO "operation" VALUES(5,'ReluBackward0','cpu_op',3,6559418,23816,NULL,4153344,NULL,'relu1','backward');
INSERT INTO "operation" VALUES(5,'aten::threshold_backward','cpu_op',3,6535602,6535602,NULL,4153344,NULL,'relu1','backward');
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: ConvolutionBackward0','cpu_op',3,36579130,68823,NULL,-4149504,NULL,'conv1','backward');
INSERT INTO "operation" VALUES(5,'ConvolutionBackward0','cpu_op',3,36371139,36765,NULL,3840,NULL,'conv1','backward');
INSERT INTO "operation" VALUES(5,'aten::convolution_backward','cpu_op',3,36334374,36294605,NULL,3840,NULL,'conv1','backward');
INSERT INTO "operation" VALUES(5,'aten::empty','cpu_op',6,16286,16286,NULL,3840,NULL,'conv1','backward');
INSERT INTO "operation" VALUES(5,'aten::as_strided_','cpu_op',6,18736,18736,NULL,0,NULL,'conv1','backward');
INSERT INTO "operation" VALUES(5,'aten::resize_','cpu_op',6,4747,4747,NULL,0,NULL,'conv1','backward');
INSERT INTO "operation" VALUES(5,'autograd::engine::evaluate_function: torch::autograd::AccumulateGrad','cpu_op',6,161601,60129,NULL,0,NULL,'conv1','backward');
INSERT INTO "operation" VALUES(5,'torch::autograd::AccumulateGrad','cpu_op',6,33669,20239,NULL,0,NULL,'conv1','backward');
INSERT INTO "operation" VALUES(5,'aten::detach','cpu_op',6,13430,5780,NULL,0,NULL,'conv1','backward');
INSERT INTO "operation" VALUES(5,'detach','cpu_op',6,7650,7650,NULL,0,NULL,'conv1','backward');
INSERT INTO "operation" VALUES(5,'aten::add_','cpu_op',48,4647729,4484114,NULL,0,NULL,NULL,'optimizer');
INSERT INTO "operation" VALUES(5,'aten::to','cpu_op',120,454665,69201,NULL,480,NULL,NULL,'optimizer');
INSERT INTO "operation" VALUES(5,'aten::_to_copy','cpu_op',120,385464,201695,NULL,480,NULL,NULL,'optimizer');
INSERT INTO "operation" VALUES(5,'aten::empty_strided','cpu_op',120,98002,98002,NULL,480,NULL,NULL,'optimizer');
INSERT INTO "operation" VALUES(5,'aten::copy_','cpu_op',120,85767,85767,NULL,0,NULL,NULL,'optimizer');
INSERT INTO "operation" VALUES(5,'aten::mul_','cpu_op',72,11190391,11011356,NULL,0,NULL,NULL,'optimizer');
INSERT INTO "operation" VALUES(5,'aten::addcmul_','cpu_op',48,3194691,3194691,NULL,0,NULL,NULL,'optimizer');
INSERT INTO "operation" VALUES(5,'aten::add','cpu_op',48,25958097,25846082,NULL,28797168,NULL,NULL,'optimizer');
INSERT INTO "operation" VALUES(5,'aten::sqrt_','cpu_op',48,9198974,9198974,NULL,0,NULL,NULL,'optimizer');
INSERT INTO "operation" VALUES(5,'aten::div_','cpu_op',24,8220316,8220316,NULL,0,NULL,NULL,'optimizer');
INSERT INTO "operation" VALUES(5,'aten::detach','cpu_op',6,32722,5952,NULL,0,NULL,NULL,NULL);
INSERT INTO "operation" VALUES(5,'detach','cpu_op',6,26770,26770,NULL,0,NULL,NULL,NULL);
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
INSERT INTO "range" VALUES(1,3,'perfctl:step:0',NULL,1000000,1000000,100,0,NULL,'push_pop',NULL,NULL,0,NULL);
INSERT INTO "range" VALUES(2,3,'perfctl:phase:forward',NULL,1010000,290000,100,1,1,'push_pop',NULL,NULL,0,'forward');
INSERT INTO "range" VALUES(3,3,'conv1:forward',NULL,1020000,180000,100,2,2,'push_pop','conv1','forward',0,'forward');
INSERT INTO "range" VALUES(4,3,'perfctl:phase:backward',NULL,1400000,500000,100,1,1,'push_pop',NULL,NULL,0,'backward');
INSERT INTO "range" VALUES(5,3,'conv1:backward',NULL,1500000,200000,200,0,NULL,'push_pop','conv1','backward',0,'backward');
INSERT INTO "range" VALUES(6,5,'perfctl:window',NULL,4351264181653755,265261580,29948,0,NULL,'push_pop',NULL,NULL,NULL,NULL);
INSERT INTO "range" VALUES(7,5,'perfctl:step:0',NULL,4351264181747174,123375549,29948,1,6,'push_pop',NULL,NULL,0,NULL);
INSERT INTO "range" VALUES(8,5,'perfctl:phase:data',NULL,4351264181765892,4537834,29948,2,7,'push_pop',NULL,NULL,0,'data');
INSERT INTO "range" VALUES(9,5,'perfctl:phase:forward',NULL,4351264186359740,62226663,29948,2,7,'push_pop',NULL,NULL,0,'forward');
INSERT INTO "range" VALUES(10,5,'MnistCNN:forward',NULL,4351264187913126,60602261,29948,3,9,'push_pop','MnistCNN','forward',0,'forward');
INSERT INTO "range" VALUES(11,5,'conv1:forward',NULL,4351264187943060,26633614,29948,4,10,'push_pop','conv1','forward',0,'forward');
INSERT INTO "range" VALUES(12,5,'relu1:forward',NULL,4351264214773608,7466180,29948,4,10,'push_pop','relu1','forward',0,'forward');
INSERT INTO "range" VALUES(13,5,'conv2:forward',NULL,4351264222346507,18136576,29948,4,10,'push_pop','conv2','forward',0,'forward');
INSERT INTO "range" VALUES(14,5,'relu2:forward',NULL,4351264240645235,161871,29948,4,10,'push_pop','relu2','forward',0,'forward');
INSERT INTO "range" VALUES(15,5,'pool:forward',NULL,4351264240856680,793603,29948,4,10,'push_pop','pool','forward',0,'forward');
INSERT INTO "range" VALUES(16,5,'dropout1:forward',NULL,4351264241686918,5486779,29948,4,10,'push_pop','dropout1','forward',0,'forward');
INSERT INTO "range" VALUES(17,5,'flatten:forward',NULL,4351264247310711,69424,29948,4,10,'push_pop','flatten','forward',0,'forward');
INSERT INTO "range" VALUES(18,5,'fc1:forward',NULL,4351264247413084,560305,29948,4,10,'push_pop','fc1','forward',0,'forward');
INSERT INTO "range" VALUES(19,5,'relu3:forward',NULL,4351264248089582,46730,29948,4,10,'push_pop','relu3','forward',0,'forward');
INSERT INTO "range" VALUES(20,5,'dropout2:forward',NULL,4351264248161299,99258,29948,4,10,'push_pop','dropout2','forward',0,'forward');
INSERT INTO "range" VALUES(21,5,'fc2:forward',NULL,4351264248283131,111396,29948,4,10,'push_pop','fc2','forward',0,'forward');
INSERT INTO "range" VALUES(22,5,'log_softmax:forward',NULL,4351264248448337,42664,29948,4,10,'push_pop','log_softmax','forward',0,'forward');
INSERT INTO "range" VALUES(23,5,'perfctl:phase:backward',NULL,4351264248603208,15239097,29948,2,7,'push_pop',NULL,NULL,0,'backward');
INSERT INTO "range" VALUES(24,5,'log_softmax:backward',NULL,4351264248820181,30646,29948,3,23,'push_pop','log_softmax','backward',0,'backward');
INSERT INTO "range" VALUES(25,5,'fc2:backward',NULL,4351264248860972,92849,29948,3,23,'push_pop','fc2','backward',0,'backward');
INSERT INTO "range" VALUES(26,5,'fc2:backward',NULL,4351264248973610,19369,29948,3,23,'push_pop','fc2','backward',0,'backward');
INSERT INTO "range" VALUES(27,5,'fc2:backward',NULL,4351264248999379,9193,29948,3,23,'push_pop','fc2','backward',0,'backward');
INSERT INTO "range" VALUES(28,5,'fc2:backward',NULL,4351264249015733,7972,29948,3,23,'push_pop','fc2','backward',0,'backward');
INSERT INTO "range" VALUES(29,5,'dropout2:backward',NULL,4351264249030144,13340,29948,3,23,'push_pop','dropout2','backward',0,'backward');
INSERT INTO "range" VALUES(30,5,'relu3:backward',NULL,4351264249051086,17626,29948,3,23,'push_pop','relu3','backward',0,'backward');
INSERT INTO "range" VALUES(31,5,'fc1:backward',NULL,4351264249076383,6356877,29948,3,23,'push_pop','fc1','backward',0,'backward');
INSERT INTO "range" VALUES(32,5,'fc1:backward',NULL,4351264255541060,51056,29948,3,23,'push_pop','fc1','backward',0,'backward');
INSERT INTO "range" VALUES(33,5,'fc1:backward',NULL,4351264255600359,15853,29948,3,23,'push_pop','fc1','backward',0,'backward');
INSERT INTO "range" VALUES(34,5,'fc1:backward',NULL,4351264255625156,7391,29948,3,23,'push_pop','fc1','backward',0,'backward');
INSERT INTO "range" VALUES(35,5,'flatten:backward',NULL,4351264255640158,13140,29948,3,23,'push_pop','flatten','backward',0,'backward');
INSERT INTO "range" VALUES(36,5,'dropout1:backward',NULL,4351264255661019,62483,29948,3,23,'push_pop','dropout1','backward',0,'backward');
INSERT INTO "range" VALUES(37,5,'pool:backward',NULL,4351264255737183,203733,29948,3,23,'push_pop','pool','backward',0,'backward');
INSERT INTO "range" VALUES(38,5,'relu2:backward',NULL,4351264255953716,522999,29948,3,23,'push_pop','relu2','backward',0,'backward');
INSERT INTO "range" VALUES(39,5,'conv2:backward',NULL,4351264256509985,6769531,29948,3,23,'push_pop','conv2','backward',0,'backward');
INSERT INTO "range" VALUES(40,5,'conv2:backward',NULL,4351264263364072,45168,29948,3,23,'push_pop','conv2','backward',0,'backward');
INSERT INTO "range" VALUES(41,5,'conv2:backward',NULL,4351264263418063,10135,29948,3,23,'push_pop','conv2','backward',0,'backward');
INSERT INTO "range" VALUES(42,5,'relu1:backward',NULL,4351264263435068,71256,29948,3,23,'push_pop','relu1','backward',0,'backward');
INSERT INTO "range" VALUES(43,5,'conv1:backward',NULL,4351264263518883,210304,29948,3,23,'push_pop','conv1','backward',0,'backward');
INSERT INTO "range" VALUES(44,5,'conv1:backward',NULL,4351264263753172,15433,29948,3,23,'push_pop','conv1','backward',0,'backward');
INSERT INTO "range" VALUES(45,5,'conv1:backward',NULL,4351264263774815,8462,29948,3,23,'push_pop','conv1','backward',0,'backward');
INSERT INTO "range" VALUES(46,5,'perfctl:phase:optimizer',NULL,4351264263862295,41164625,29948,2,7,'push_pop',NULL,NULL,0,'optimizer');
INSERT INTO "range" VALUES(47,5,'Optimizer.step#Adadelta.step',NULL,4351264263888905,40992358,29948,3,46,'push_pop',NULL,NULL,0,'optimizer');
INSERT INTO "range" VALUES(48,5,'Optimizer.zero_grad#Adadelta.zero_grad',NULL,4351264304943145,54050,29948,3,46,'push_pop',NULL,NULL,0,'optimizer');
INSERT INTO "range" VALUES(49,5,'perfctl:step:1',NULL,4351264305170474,86315602,29948,1,6,'push_pop',NULL,NULL,1,NULL);
INSERT INTO "range" VALUES(50,5,'perfctl:phase:data',NULL,4351264305187119,23635,29948,2,49,'push_pop',NULL,NULL,1,'data');
INSERT INTO "range" VALUES(51,5,'perfctl:phase:forward',NULL,4351264305216492,21099714,29948,2,49,'push_pop',NULL,NULL,1,'forward');
INSERT INTO "range" VALUES(52,5,'MnistCNN:forward',NULL,4351264305262381,20986565,29948,3,51,'push_pop','MnistCNN','forward',1,'forward');
INSERT INTO "range" VALUES(53,5,'conv1:forward',NULL,4351264305283843,438724,29948,4,52,'push_pop','conv1','forward',1,'forward');
INSERT INTO "range" VALUES(54,5,'relu1:forward',NULL,4351264305828915,76584,29948,4,52,'push_pop','relu1','forward',1,'forward');
INSERT INTO "range" VALUES(55,5,'conv2:forward',NULL,4351264305932440,5264157,29948,4,52,'push_pop','conv2','forward',1,'forward');
INSERT INTO "range" VALUES(56,5,'relu2:forward',NULL,4351264311330126,112758,29948,4,52,'push_pop','relu2','forward',1,'forward');
INSERT INTO "range" VALUES(57,5,'pool:forward',NULL,4351264311477155,742066,29948,4,52,'push_pop','pool','forward',1,'forward');
INSERT INTO "range" VALUES(58,5,'dropout1:forward',NULL,4351264312247163,1134241,29948,4,52,'push_pop','dropout1','forward',1,'forward');
INSERT INTO "range" VALUES(59,5,'flatten:forward',NULL,4351264313413602,36705,29948,4,52,'push_pop','flatten','forward',1,'forward');
INSERT INTO "range" VALUES(60,5,'fc1:forward',NULL,4351264313471458,520746,29948,4,52,'push_pop','fc1','forward',1,'forward');
INSERT INTO "range" VALUES(61,5,'relu3:forward',NULL,4351264314060947,8162748,29948,4,52,'push_pop','relu3','forward',1,'forward');
INSERT INTO "range" VALUES(62,5,'dropout2:forward',NULL,4351264322309643,173128,29948,4,52,'push_pop','dropout2','forward',1,'forward');
INSERT INTO "range" VALUES(63,5,'fc2:forward',NULL,4351264322507999,3613377,29948,4,52,'push_pop','fc2','forward',1,'forward');
INSERT INTO "range" VALUES(64,5,'log_softmax:forward',NULL,4351264326180594,45518,29948,4,52,'push_pop','log_softmax','forward',1,'forward');
INSERT INTO "range" VALUES(65,5,'perfctl:phase:backward',NULL,4351264326333882,56217735,29948,2,49,'push_pop',NULL,NULL,1,'backward');
INSERT INTO "range" VALUES(66,5,'log_softmax:backward',NULL,4351264326548192,27260,29948,3,65,'push_pop','log_softmax','backward',1,'backward');
INSERT INTO "range" VALUES(67,5,'fc2:backward',NULL,4351264326584746,86649,29948,3,65,'push_pop','fc2','backward',1,'backward');
INSERT INTO "range" VALUES(68,5,'fc2:backward',NULL,4351264326690935,17205,29948,3,65,'push_pop','fc2','backward',1,'backward');
INSERT INTO "range" VALUES(69,5,'fc2:backward',NULL,4351264326714269,10035,29948,3,65,'push_pop','fc2','backward',1,'backward');
INSERT INTO "range" VALUES(70,5,'fc2:backward',NULL,4351264326731165,6690,29948,3,65,'push_pop','fc2','backward',1,'backward');
INSERT INTO "range" VALUES(71,5,'dropout2:backward',NULL,4351264326743984,14331,29948,3,65,'push_pop','dropout2','backward',1,'backward');
INSERT INTO "range" VALUES(72,5,'relu3:backward',NULL,4351264326766197,16625,29948,3,65,'push_pop','relu3','backward',1,'backward');
INSERT INTO "range" VALUES(73,5,'fc1:backward',NULL,4351264326789662,2155773,29948,3,65,'push_pop','fc1','backward',1,'backward');
INSERT INTO "range" VALUES(74,5,'fc1:backward',NULL,4351264328994599,23755,29948,3,65,'push_pop','fc1','backward',1,'backward');
INSERT INTO "range" VALUES(75,5,'fc1:backward',NULL,4351264329024353,11547,29948,3,65,'push_pop','fc1','backward',1,'backward');
INSERT INTO "range" VALUES(76,5,'fc1:backward',NULL,4351264329042660,6310,29948,3,65,'push_pop','fc1','backward',1,'backward');
INSERT INTO "range" VALUES(77,5,'flatten:backward',NULL,4351264329056401,11868,29948,3,65,'push_pop','flatten','backward',1,'backward');
INSERT INTO "range" VALUES(78,5,'dropout1:backward',NULL,4351264329075309,41091,29948,3,65,'push_pop','dropout1','backward',1,'backward');
INSERT INTO "range" VALUES(79,5,'pool:backward',NULL,4351264329126926,201520,29948,3,65,'push_pop','pool','backward',1,'backward');
INSERT INTO "range" VALUES(80,5,'relu2:backward',NULL,4351264329340274,121331,29948,3,65,'push_pop','relu2','backward',1,'backward');
INSERT INTO "range" VALUES(81,5,'conv2:backward',NULL,4351264329473963,8557217,29948,3,65,'push_pop','conv2','backward',1,'backward');
INSERT INTO "range" VALUES(82,5,'conv2:backward',NULL,4351264339587810,74121,29948,3,65,'push_pop','conv2','backward',1,'backward');
INSERT INTO "range" VALUES(83,5,'conv2:backward',NULL,4351264339678776,8743,29948,3,65,'push_pop','conv2','backward',1,'backward');
INSERT INTO "range" VALUES(84,5,'relu1:backward',NULL,4351264339695260,6451938,29948,3,65,'push_pop','relu1','backward',1,'backward');
INSERT INTO "range" VALUES(85,5,'conv1:backward',NULL,4351264346183342,36131442,29948,3,65,'push_pop','conv1','backward',1,'backward');
INSERT INTO "range" VALUES(86,5,'conv1:backward',NULL,4351264382431007,48843,29948,3,65,'push_pop','conv1','backward',1,'backward');
INSERT INTO "range" VALUES(87,5,'conv1:backward',NULL,4351264382488643,11317,29948,3,65,'push_pop','conv1','backward',1,'backward');
INSERT INTO "range" VALUES(88,5,'perfctl:phase:optimizer',NULL,4351264382570625,8822682,29948,2,49,'push_pop',NULL,NULL,1,'optimizer');
INSERT INTO "range" VALUES(89,5,'Optimizer.step#Adadelta.step',NULL,4351264382600800,8668563,29948,3,88,'push_pop',NULL,NULL,1,'optimizer');
INSERT INTO "range" VALUES(90,5,'Optimizer.zero_grad#Adadelta.zero_grad',NULL,4351264391323744,43835,29948,3,88,'push_pop',NULL,NULL,1,'optimizer');
INSERT INTO "range" VALUES(91,5,'perfctl:step:2',NULL,4351264391531243,55343772,29948,1,6,'push_pop',NULL,NULL,2,NULL);
INSERT INTO "range" VALUES(92,5,'perfctl:phase:data',NULL,4351264391548218,21693,29948,2,91,'push_pop',NULL,NULL,2,'data');
INSERT INTO "range" VALUES(93,5,'perfctl:phase:forward',NULL,4351264391575399,9011463,29948,2,91,'push_pop',NULL,NULL,2,'forward');
INSERT INTO "range" VALUES(94,5,'MnistCNN:forward',NULL,4351264391616510,8908300,29948,3,93,'push_pop','MnistCNN','forward',2,'forward');
INSERT INTO "range" VALUES(95,5,'conv1:forward',NULL,4351264391639965,419816,29948,4,94,'push_pop','conv1','forward',2,'forward');
INSERT INTO "range" VALUES(96,5,'relu1:forward',NULL,4351264392157967,70616,29948,4,94,'push_pop','relu1','forward',2,'forward');
INSERT INTO "range" VALUES(97,5,'conv2:forward',NULL,4351264392252438,948104,29948,4,94,'push_pop','conv2','forward',2,'forward');
INSERT INTO "range" VALUES(98,5,'relu2:forward',NULL,4351264393253581,54541,29948,4,94,'push_pop','relu2','forward',2,'forward');
INSERT INTO "range" VALUES(99,5,'pool:forward',NULL,4351264393331807,4954826,29948,4,94,'push_pop','pool','forward',2,'forward');
INSERT INTO "range" VALUES(100,5,'dropout1:forward',NULL,4351264398367784,1173900,29948,4,94,'push_pop','dropout1','forward',2,'forward');
INSERT INTO "range" VALUES(101,5,'flatten:forward',NULL,4351264399576056,37816,29948,4,94,'push_pop','flatten','forward',2,'forward');
INSERT INTO "range" VALUES(102,5,'fc1:forward',NULL,4351264399636906,555338,29948,4,94,'push_pop','fc1','forward',2,'forward');
INSERT INTO "range" VALUES(103,5,'relu3:forward',NULL,4351264400255649,34701,29948,4,94,'push_pop','relu3','forward',2,'forward');
INSERT INTO "range" VALUES(104,5,'dropout2:forward',NULL,4351264400309769,67972,29948,4,94,'push_pop','dropout2','forward',2,'forward');
INSERT INTO "range" VALUES(105,5,'fc2:forward',NULL,4351264400394876,36505,29948,4,94,'push_pop','fc2','forward',2,'forward');
INSERT INTO "range" VALUES(106,5,'log_softmax:forward',NULL,4351264400472622,31487,29948,4,94,'push_pop','log_softmax','forward',2,'forward');
INSERT INTO "range" VALUES(107,5,'perfctl:phase:backward',NULL,4351264400601364,31585866,29948,2,91,'push_pop',NULL,NULL,2,'backward');
INSERT INTO "range" VALUES(108,5,'log_softmax:backward',NULL,4351264400794382,27451,29948,3,107,'push_pop','log_softmax','backward',2,'backward');
INSERT INTO "range" VALUES(109,5,'fc2:backward',NULL,4351264400831077,71176,29948,3,107,'push_pop','fc2','backward',2,'backward');
INSERT INTO "range" VALUES(110,5,'fc2:backward',NULL,4351264400921281,16685,29948,3,107,'push_pop','fc2','backward',2,'backward');
INSERT INTO "range" VALUES(111,5,'fc2:backward',NULL,4351264400943704,9975,29948,3,107,'push_pop','fc2','backward',2,'backward');
INSERT INTO "range" VALUES(112,5,'fc2:backward',NULL,4351264400960329,5669,29948,3,107,'push_pop','fc2','backward',2,'backward');
INSERT INTO "range" VALUES(113,5,'dropout2:backward',NULL,4351264400971656,11708,29948,3,107,'push_pop','dropout2','backward',2,'backward');
INSERT INTO "range" VALUES(114,5,'relu3:backward',NULL,4351264400990464,18267,29948,3,107,'push_pop','relu3','backward',2,'backward');
INSERT INTO "range" VALUES(115,5,'fc1:backward',NULL,4351264401015351,6459820,29948,3,107,'push_pop','fc1','backward',2,'backward');
INSERT INTO "range" VALUES(116,5,'fc1:backward',NULL,4351264407568781,37676,29948,3,107,'push_pop','fc1','backward',2,'backward');
INSERT INTO "range" VALUES(117,5,'fc1:backward',NULL,4351264407614839,12098,29948,3,107,'push_pop','fc1','backward',2,'backward');
INSERT INTO "range" VALUES(118,5,'fc1:backward',NULL,4351264407634869,7992,29948,3,107,'push_pop','fc1','backward',2,'backward');
INSERT INTO "range" VALUES(119,5,'flatten:backward',NULL,4351264407650322,12108,29948,3,107,'push_pop','flatten','backward',2,'backward');
INSERT INTO "range" VALUES(120,5,'dropout1:backward',NULL,4351264407670132,52328,29948,3,107,'push_pop','dropout1','backward',2,'backward');
INSERT INTO "range" VALUES(121,5,'pool:backward',NULL,4351264407734347,211325,29948,3,107,'push_pop','pool','backward',2,'backward');
INSERT INTO "range" VALUES(122,5,'relu2:backward',NULL,4351264407957570,126018,29948,3,107,'push_pop','relu2','backward',2,'backward');
INSERT INTO "range" VALUES(123,5,'conv2:backward',NULL,4351264408095165,23525450,29948,3,107,'push_pop','conv2','backward',2,'backward');
INSERT INTO "range" VALUES(124,5,'conv2:backward',NULL,4351264431741575,57135,29948,3,107,'push_pop','conv2','backward',2,'backward');
INSERT INTO "range" VALUES(125,5,'conv2:backward',NULL,4351264431807443,8673,29948,3,107,'push_pop','conv2','backward',2,'backward');
INSERT INTO "range" VALUES(126,5,'relu1:backward',NULL,4351264431822856,88873,29948,3,107,'push_pop','relu1','backward',2,'backward');
INSERT INTO "range" VALUES(127,5,'conv1:backward',NULL,4351264431923977,168561,29948,3,107,'push_pop','conv1','backward',2,'backward');
INSERT INTO "range" VALUES(128,5,'conv1:backward',NULL,4351264432108953,11287,29948,3,107,'push_pop','conv1','backward',2,'backward');
INSERT INTO "range" VALUES(129,5,'conv1:backward',NULL,4351264432128071,6130,29948,3,107,'push_pop','conv1','backward',2,'backward');
INSERT INTO "range" VALUES(130,5,'perfctl:phase:optimizer',NULL,4351264432207290,14568757,29948,2,91,'push_pop',NULL,NULL,2,'optimizer');
INSERT INTO "range" VALUES(131,5,'Optimizer.step#Adadelta.step',NULL,4351264432238776,14415660,29948,3,130,'push_pop',NULL,NULL,2,'optimizer');
INSERT INTO "range" VALUES(132,5,'Optimizer.zero_grad#Adadelta.zero_grad',NULL,4351264446703960,44917,29948,3,130,'push_pop',NULL,NULL,2,'optimizer');
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
INSERT INTO "run" VALUES(1,1,'ncu',NULL,NULL,NULL,NULL,NULL,NULL,1,'ok',NULL,NULL,NULL,NULL,'data/ncu-nvtx/layers.csv','ce5bba9274ea779e35b4268f46a6d377c1192cce4762041056bf240e3368f957','ingested','ncu CSV, long, 17 columns',NULL,NULL,'2026-11-23T05:18:44Z');
INSERT INTO "run" VALUES(2,1,'nvidia-smi',NULL,NULL,NULL,NULL,NULL,NULL,2,'ok',NULL,NULL,NULL,1002000000,'data/nvidia-smi-synthetic/query.csv','584f327844565d142de60a2afbb3f51fe0a0e9aa4a51d5d91387c631540b73dc','ingested','nvidia-smi CSV',NULL,NULL,'2026-11-23T05:18:44Z');
INSERT INTO "run" VALUES(3,1,'torch',NULL,NULL,NULL,NULL,NULL,NULL,4,'ok',NULL,NULL,'2025-07-01T23:00:36+00:00',1100000,'data/kineto-synthetic/trace.json','f3cf4daae21c93c5f11aea68f042f04541f98de6f54eeaa2048409a75763bbac','ingested','Kineto trace, CPU and GPU',NULL,NULL,'2026-11-23T05:18:44Z');
INSERT INTO "run" VALUES(4,1,'dlprof','1.8.0',NULL,NULL,NULL,NULL,NULL,5,'ok',NULL,NULL,NULL,1000000,'data/dlprof-synthetic','4e6226d34857a309f32981df0ef5258582f146759b6aca7ba05a2c2d7faefea2','ingested','DLProf CSV: detail, expert_systems, iteration, kernel, op_type, summary',NULL,NULL,'2026-11-23T05:18:44Z');
INSERT INTO "run" VALUES(5,2,'torch','2.15.0+cu132','mnist_cnn',NULL,16,'train','fp32',8,'ok',0,NULL,'2026-11-23T05:18:44.808+00:00',207772706,'perfctl-runs/torch-mnist_cnn-435d0484/b16/report.pt.trace.json.gz','1e4036b33b55f8d713ea8218cad1e623be7f314c7de8be09d6ddb0436871dd71','recorded','Kineto trace, CPU only','["python", "-m", "perfctl.orchestrator.launch.profilers.replay_copy", "data/recorded-cpu/torch/b16", "perfctl-runs/torch-mnist_cnn-435d0484/b16.part"]','monotonic','2026-11-23T05:18:45Z');
CREATE TABLE run_device (         -- a device that a run could see
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    device_index INTEGER NOT NULL, -- CUDA ordinal in that run; -; NULL: never
    device_id INTEGER NOT NULL REFERENCES device(id), -- the device; -; NULL: never
    PRIMARY KEY (run_id, device_id, device_index)
);
INSERT INTO "run_device" VALUES(1,0,1);
INSERT INTO "run_device" VALUES(2,0,2);
INSERT INTO "run_device" VALUES(2,1,3);
INSERT INTO "run_device" VALUES(3,0,4);
INSERT INTO "run_device" VALUES(3,1,4);
INSERT INTO "run_device" VALUES(4,0,5);
INSERT INTO "run_device" VALUES(4,1,6);
INSERT INTO "run_device" VALUES(4,0,7);
INSERT INTO "run_device" VALUES(5,0,8);
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
, memory_clock_hz INTEGER, energy_j REAL, throttle_reasons TEXT, process_memory_bytes INTEGER, process_utilisation REAL, host_cpu REAL, host_memory_bytes INTEGER);
INSERT INTO "sample" VALUES(2,1709632800500000000,0.4,104857600,1048576000,50.25,41.0,1200000000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "sample" VALUES(2,1709632800502000000,0.0,1048576,2097152000,NULL,35.0,300000000,1,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "sample" VALUES(2,1709632801500000000,1.0,314572800,1048576000,75.75,43.0,1500000000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "sample" VALUES(2,1709632801502000000,NULL,1048576,2097152000,NULL,35.0,300000000,1,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE step (               -- one measured iteration, or one phase of it
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    number INTEGER NOT NULL,      -- from 0; -; NULL: never
    phase TEXT NOT NULL,          -- step, data, forward, backward, optimizer, inference, epoch, test; -; NULL: never
    start_ns INTEGER,             -- on the run's clock; ns; NULL: not timed
    duration_ns INTEGER,          -- length; ns; NULL: not timed
    loss REAL,                    -- mean over the samples; -; NULL: not computed
    accuracy REAL                 -- share of right answers; 0..1; NULL: not computed
);
INSERT INTO "step" VALUES(3,0,'step',1000000,1000000,NULL,NULL);
INSERT INTO "step" VALUES(3,0,'forward',1010000,290000,NULL,NULL);
INSERT INTO "step" VALUES(3,0,'backward',1400000,500000,NULL,NULL);
INSERT INTO "step" VALUES(5,0,'step',3795019673620,123363611,2.1840343475341796875e+00,NULL);
INSERT INTO "step" VALUES(5,0,'data',3795019691787,4446228,NULL,NULL);
INSERT INTO "step" VALUES(5,0,'forward',3795024303872,62189267,NULL,NULL);
INSERT INTO "step" VALUES(5,0,'backward',3795086529073,15218116,NULL,NULL);
INSERT INTO "step" VALUES(5,0,'optimizer',3795101786888,41144194,NULL,NULL);
INSERT INTO "step" VALUES(5,1,'step',3795143096088,86304486,2.07335710525512695312e+00,NULL);
INSERT INTO "step" VALUES(5,1,'data',3795143111862,14632,NULL,NULL);
INSERT INTO "step" VALUES(5,1,'forward',3795143139833,21085112,NULL,NULL);
INSERT INTO "step" VALUES(5,1,'backward',3795164258716,56199617,NULL,NULL);
INSERT INTO "step" VALUES(5,1,'optimizer',3795220495809,8801661,NULL,NULL);
INSERT INTO "step" VALUES(5,2,'step',3795229457989,55330462,2.62950634956359863281e+00,NULL);
INSERT INTO "step" VALUES(5,2,'data',3795229471439,14452,NULL,NULL);
INSERT INTO "step" VALUES(5,2,'forward',3795229497528,8999957,NULL,NULL);
INSERT INTO "step" VALUES(5,2,'backward',3795238526888,31566587,NULL,NULL);
INSERT INTO "step" VALUES(5,2,'optimizer',3795270133555,14545784,NULL,NULL);
CREATE TABLE store_info (         -- one fact about this file itself
    key TEXT PRIMARY KEY,         -- written_by, created_at; -; NULL: never
    value TEXT                    -- the fact; -; NULL: never
);
INSERT INTO "store_info" VALUES('created_at','2026-11-23T05:18:44Z');
INSERT INTO "store_info" VALUES('written_by','0.3.0');
CREATE TABLE summary (            -- a figure that a report gives ready-made
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- as the report labels it; -; NULL: never
    value REAL,                   -- the figure; in the unit beside it; NULL: no number
    unit TEXT,                    -- its unit; -; NULL: none
    text TEXT                     -- a value that is no number; -; NULL: it is one
);
INSERT INTO "summary" VALUES(2,'GPU 0: utilization.memory mean',15.0,'%',NULL);
INSERT INTO "summary" VALUES(2,'GPU 0: utilization.memory min',10.0,'%',NULL);
INSERT INTO "summary" VALUES(2,'GPU 0: utilization.memory max',20.0,'%',NULL);
INSERT INTO "summary" VALUES(2,'GPU 0: fan.speed mean',40.0,'%',NULL);
INSERT INTO "summary" VALUES(2,'GPU 0: fan.speed min',30.0,'%',NULL);
INSERT INTO "summary" VALUES(2,'GPU 0: fan.speed max',50.0,'%',NULL);
INSERT INTO "summary" VALUES(2,'GPU 0: pstate: P2',1.0,'reading',NULL);
INSERT INTO "summary" VALUES(2,'GPU 0: pstate: P0',1.0,'reading',NULL);
INSERT INTO "summary" VALUES(2,'GPU 1: utilization.memory mean',0.0,'%',NULL);
INSERT INTO "summary" VALUES(2,'GPU 1: utilization.memory min',0.0,'%',NULL);
INSERT INTO "summary" VALUES(2,'GPU 1: utilization.memory max',0.0,'%',NULL);
INSERT INTO "summary" VALUES(2,'GPU 1: fan.speed',NULL,NULL,'not available');
INSERT INTO "summary" VALUES(2,'GPU 1: pstate',NULL,NULL,'P8');
INSERT INTO "summary" VALUES(4,'GPU Count',2.0,NULL,NULL);
INSERT INTO "summary" VALUES(4,'GPU Name(s)',NULL,NULL,'Synthetic GPU A, Synthetic GPU B');
INSERT INTO "summary" VALUES(4,'CPU Model',NULL,NULL,'Synthetic CPU');
INSERT INTO "summary" VALUES(4,'GPU Driver Version',NULL,NULL,'515.43.04');
INSERT INTO "summary" VALUES(4,'Framework',NULL,NULL,'PyTorch 1.10.1');
INSERT INTO "summary" VALUES(4,'CUDA Version',NULL,NULL,'11.7');
INSERT INTO "summary" VALUES(4,'cuDNN Version',NULL,NULL,'8.3.0');
INSERT INTO "summary" VALUES(4,'DLProf Version',NULL,NULL,'v1.8.0');
INSERT INTO "summary" VALUES(4,'Wall Clock Time',1000000.0,'ns',NULL);
INSERT INTO "summary" VALUES(4,'GPU Utilization',0.0,'%',NULL);
INSERT INTO "summary" VALUES(4,'Tensor Core Kernel Utilization',NULL,'%','N/A');
INSERT INTO "summary" VALUES(4,'Total Iterations',3.0,NULL,NULL);
INSERT INTO "summary" VALUES(4,'All Kernels: All kernels: GPU Time',700.0,'ns',NULL);
INSERT INTO "summary" VALUES(4,'All Kernels: All kernels: CPU Time',900.0,'ns',NULL);
INSERT INTO "summary" VALUES(4,'All Kernels: All kernels: # Kernels',4.0,NULL,NULL);
INSERT INTO "summary" VALUES(4,'All Kernels: Memory: GPU Time',0.0,'ns',NULL);
INSERT INTO "summary" VALUES(4,'All Kernels: Memory: CPU Time',0.0,'ns',NULL);
INSERT INTO "summary" VALUES(4,'All Kernels: Memory: # Kernels',0.0,NULL,NULL);
CREATE TABLE sweep (              -- one 'perfctl PROFILER --batches ...' call, or one ingest
    id INTEGER PRIMARY KEY,       -- number of the sweep; -; NULL: never
    name TEXT NOT NULL,           -- name of its folder, or of the ingest; -; NULL: never
    kind TEXT NOT NULL,           -- sweep or ingest; -; NULL: never
    created_at TEXT NOT NULL,     -- when it was first asked for; UTC, ISO 8601; NULL: never
    command TEXT,                 -- the command line, ready to paste; -; NULL: called from Python
    host TEXT                     -- host name; -; NULL: not known
);
INSERT INTO "sweep" VALUES(1,'ingest 2026-11-23T05:18:43Z 4360','ingest','2026-11-23T05:18:43Z','perfctl ingest data/ncu-nvtx/layers.csv data/nvidia-smi-synthetic/query.csv data/kineto-synthetic/trace.json data/dlprof-synthetic','vm');
INSERT INTO "sweep" VALUES(2,'torch-mnist_cnn-435d0484','sweep','2026-11-23T05:18:45Z','perfctl replay --batches 16 data/recorded-cpu/torch','vm');
CREATE INDEX run_by_sweep ON run(sweep_id);
CREATE INDEX run_by_artifact ON run(artifact_sha256);
CREATE INDEX layer_call_by_run ON layer_call(run_id);
CREATE INDEX range_by_run ON range(run_id);
CREATE INDEX kernel_name_by_run ON kernel_name(run_id);
CREATE INDEX kernel_layer_by_run ON kernel_layer(run_id);
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
CREATE INDEX metric_by_run ON metric(run_id);
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
CREATE INDEX copy_by_run ON copy(run_id);
CREATE INDEX operation_by_run ON operation(run_id);
CREATE INDEX sample_by_run ON sample(run_id);
CREATE INDEX memory_by_run ON memory(run_id);
CREATE INDEX step_by_run ON step(run_id);
CREATE INDEX summary_by_run ON summary(run_id);
CREATE INDEX gap_by_run ON gap(run_id);
CREATE INDEX diagnostic_by_run ON diagnostic(run_id);
CREATE INDEX op_shape_by_run ON op_shape(run_id);
CREATE INDEX layer_time_by_run ON layer_time(run_id);
CREATE INDEX feature_by_run ON feature(run_id);
COMMIT;
PRAGMA application_id = 1885696614;
PRAGMA user_version = 3;

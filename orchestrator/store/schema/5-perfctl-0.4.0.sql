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
    how TEXT,                     -- what they were matched by, node, name or order; -; NULL: not matched
    confidence REAL               -- that these kernels have the right layer, kernel.layer_source capture; 0..1; NULL: not matched
);
CREATE INDEX graph_launch_by_run ON graph_launch(run_id);

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
CREATE INDEX layer_time_by_run ON layer_time(run_id);
CREATE TABLE feature (            -- one figure of a step from pen and paper, that times are set against
    run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, -- the run; -; NULL: never
    name TEXT NOT NULL,           -- what it counts, macs, macs:Conv2d, bytes, layers, parameters, ...; -; NULL: never
    value REAL NOT NULL,          -- the figure; in the unit beside it; NULL: never
    unit TEXT                     -- its unit; -; NULL: a plain count
);
CREATE INDEX feature_by_run ON feature(run_id);

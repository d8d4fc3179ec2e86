.read bare.sql
ALTER TABLE read_only_ops RENAME COLUMN op_id TO other;

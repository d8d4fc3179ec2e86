.read complete.sql
UPDATE gpu_memories SET total = 'much';

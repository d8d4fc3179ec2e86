.read bare.sql
DELETE FROM read_only_kernels;
DELETE FROM read_only_memcpys;
INSERT INTO read_only_kernels VALUES
    (1, 1, 1, 2, 0, 5, 5, 1, 2, 0), (2, 1, 1, 2, 0, 5, 4, 1, 2, 0), (3, 1, 1, 2, 0, 0, 0, 1, 2, 0),
    (4, 1, 1, 2, 0, 0, 7, 1, 2, 0), (5, 1, 1, 2, 0, -3, 2, 1, 2, 0);
INSERT INTO read_only_memcpys VALUES (1, 5, 5, 9, 1, 3), (2, 5, 4, 9, 2, 3), (3, 0, 0, 9, 3, 3), (4, 0, 7, 9, 4, 3),
    (5, -3, 2, 9, 5, 3);
INSERT INTO iteration_list VALUES (3, 2, 10, 250, 250), (4, 2, 'x', 1, 2);

.read ../empty-2024.2.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'MPI_Send'),
    (2, 'MPI_Bcast');
CREATE TABLE MPI_P2P_EVENTS (start, end, globalTid, textId);
INSERT INTO MPI_P2P_EVENTS (start, end, textId) VALUES
    (100, 103, 1);
CREATE TABLE MPI_START_WAIT_EVENTS (start, end, globalTid, textId);
INSERT INTO MPI_START_WAIT_EVENTS (start, end, textId) VALUES
    (100, 105, 1);
CREATE TABLE MPI_COLLECTIVES_EVENTS (start, end, globalTid, textId);
INSERT INTO MPI_COLLECTIVES_EVENTS (start, end, textId) VALUES
    (100, 109, 2);

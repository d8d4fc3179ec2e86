"""The store as a folder of Parquet files, for what is larger than one file or one memory."""

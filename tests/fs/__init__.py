"""Stand-ins for the file system's calls (`fs=`), and what must be true of a queue folder."""

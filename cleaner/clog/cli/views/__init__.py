"""What commands draw: pictures and tables of logs, partitions and plans."""

"""The methods of the paper, one file each."""

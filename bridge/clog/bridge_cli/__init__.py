"""The commands of the bridge, `clog mirror` and `clog capture`, in the command line `clog`."""

"""Topologies read from the output of tools such as nvidia-smi, NCCL and lstopo.

`table` lists the readers, `here` looks at this machine, `joining` puts a box and a fabric together. A reader makes of a
file a `probed.Probed`; those of boxes by way of a `box.Box`, those of networks by way of a `net.Net`."""

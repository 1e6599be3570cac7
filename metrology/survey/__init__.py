"""A survey of a GPU: all that this project would ask a GPU nobody has measured, in one archive, and its reading."""

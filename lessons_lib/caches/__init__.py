"""Key-value caches of our decoder, and the arithmetic of their size (lessons 02, 03, 05).

cache               what every cache is asked
contiguous, static  one sequence in buffers that grow, or never move
paged, paged_memory sequences in blocks of a common memory
masks, sizes        which entries a token sees; how many bytes they take
"""

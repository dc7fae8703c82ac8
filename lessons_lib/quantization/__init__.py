"""Number formats with fewer bits, how weights are rounded to them, and products that read them (lesson 10).

quantized, packing, checks   what every format answers; codes of 2 to 8 bits in bytes; input that is refused
integers, nf4, floats        evenly spaced levels, levels of a normal distribution, floats of 8 bits
gptq, scaling                rounding that looks at inputs: GPTQ; AWQ and SmoothQuant
linear, packed               products with rounded matrices for `Kernels`; torch's CPU kernels of 8 and 4 bits
int8_products                integers times integers, LLM.int8()
kv                           keys and values of a sequence in few bits
errors                       there and back in any format, and how far off that is
sizes                        bits of a weight, bytes of a model, the GPUs that hold it
"""

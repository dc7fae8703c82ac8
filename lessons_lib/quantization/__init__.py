"""Number formats with fewer bits, how weights are rounded to them, and products that read them (lesson 10).

quantized, packing, checks   what every format answers; codes of 2 to 8 bits in bytes; input that is refused
integers, nf4, floats        evenly spaced levels, levels of a normal distribution, floats of 8 bits
formats                      all of them by name
gptq, scaling                rounding that looks at inputs: GPTQ; AWQ and SmoothQuant
linear, matrix               products with rounded matrices for `Kernels`
packed, words, units         codes of 8 and 4 bits: torch's CPU kernels, ours for a compiler, and which of them is fast
on_gpu                       codes of 4 bits on a GPU
int8_products                integers times integers, LLM.int8()
grouped                      integers times integers, one scale for 32 of either: lesson 11's kernel in C++
kv                           keys and values of a sequence in few bits
errors                       there and back in any format, and how far off that is
sizes                        bits of a weight, bytes of a model, the GPUs that hold it

Decoders made of them: `models.quantized`.
"""

// Parts of initializers that are alike in most tests. What they do not name can stand beside them.
#pragma once

// Of a ModelConfig: widths of the residual stream and of the FFN, layers, heads, KV heads, a head's
// size, the vocabulary, positions.
#define MODEL_SHAPE(hidden, ffn, layers, heads, kv_heads, size, vocabulary, positions)             \
  .hidden_size = (hidden), .intermediate_size = (ffn), .num_hidden_layers = (layers),              \
  .num_attention_heads = (heads), .num_key_value_heads = (kv_heads), .head_dim = (size),           \
  .vocab_size = (vocabulary), .max_position_embeddings = (positions), .rms_norm_eps = 1e-5,        \
  .rope_theta = 10000

// Of a Spec of one layer's operations: widths, heads, KV heads, a head's size, the vocabulary,
// rows, positions.
#define SPEC_SHAPE(hidden, ffn, heads, kv_heads, size, vocabulary, rows, positions)                \
  .D = (hidden), .F = (ffn), .H = (heads), .KV = (kv_heads), .d = (size), .V = (vocabulary),       \
  .max_tokens = (rows), .max_positions = (positions)

// Of a Spec for model_spec.
#define TRAINS(sequences, length, chunks)                                                          \
  .batch = (sequences), .seq = (length), .loss_chunks = (chunks), .train = true

// Of an AdamW. norm: its norm_rate.
#define ADAMW_AT(norm)                                                                             \
  .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .gradient_scale = 1, .norm_rate = (norm)
#define USUAL_ADAMW ADAMW_AT(1)

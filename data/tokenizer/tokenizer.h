// Text <-> token ids: the built-in byte tokenizer, or a Hugging Face tokenizer.json.
//
// A Tokenizer does not change once it is open, and threads may share it. Encoding and decoding
// write into an Encoder or Decoder, one for each thread.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/text.h"
#include "base/error.h"

// The byte tokenizer: ids 0 to 255 are bytes, then BOS and EOS.
#define BYTES_NAME "bytes"
enum { TOKEN_BOS = 256, TOKEN_EOS = 257, BYTE_VOCAB = 258 };

enum { NO_TOKEN = -1 };

typedef struct Tokenizer Tokenizer;

#define CHAT_TEMPLATE_FILE "chat_template.jinja"

typedef struct TokenizerFacts {
  const char *name; // BYTES_NAME, or the path that it was read from; the tokenizer's
  // Never 0; equal for files that say the same, however they spell it. BOS and EOS have no part
  // in it: ids mean the same, whatever these are.
  uint64_t fingerprint;
  int64_t vocab_size; // the largest id + 1
  // The tokens around a document, or NO_TOKEN. BOS: by the post-processor. EOS: eos_token of the
  // tokenizer_config.json next to it, else eos_token_id of generation_config.json or config.json,
  // else a special token of a name known for it (<|end_of_text|>, <|endoftext|>, </s>).
  int32_t bos, eos;
  int32_t bos_token; // by tokenizer_config.json next to it, whether or not a text begins with it
  // The text of chat_template.jinja next to it, else chat_template of tokenizer_config.json (of
  // several the one named "default"), else NULL. The tokenizer's.
  const char *chat_template;
  // The bytes that a token can reach across a newline: a document that is cut between a newline and
  // one of them may have other ids than the whole. Empty for most tokenizers.
  ByteSet joined;
} TokenizerFacts;

// BYTES_NAME, a tokenizer.json, or a folder with one as model_folder_read finds it
// (data/model_folder.h), such as a run's. NULL on error.
Tokenizer *tokenizer_open(const char *path, Error *err);
// Appends to a sentence about a folder without tokenizer.json how to make one, if its
// tokenizer.model is SentencePiece's; returns -1.
int tokenizer_advise(const char *folder, Error *err);
// A tokenizer.json over memory; `name` stands for the path in sentences.
Tokenizer *tokenizer_parse(const char *name, const char *json, size_t bytes, Error *err);
void tokenizer_close(Tokenizer *tokenizer); // NULL is fine
const TokenizerFacts *tokenizer_facts(const Tokenizer *tokenizer);
// The id of the special token that this text names, or NO_TOKEN.
int32_t tokenizer_special(const Tokenizer *tokenizer, const char *text);
// Its text; NULL: this id is no special token.
const char *tokenizer_special_text(const Tokenizer *tokenizer, int32_t id);

// True if a text gives the id of this special token wherever it spells it: no normalizer comes
// first.
bool tokenizer_always_finds(const Tokenizer *tokenizer, int32_t id);

// Replaces its chat template, which tokenizer_save then writes as chat_template.jinja.
void tokenizer_set_template(Tokenizer *tokenizer, const char *text);

// Writes tokenizer.json, tokenizer_config.json and, where there is one, chat_template.jinja into a
// folder, as transformers' AutoTokenizer loads them, and syncs them: those that were read, byte for
// byte, where there were any.
int tokenizer_save(const Tokenizer *tokenizer, const char *folder, Error *err);

// ---- Encoding

typedef struct TokenIds {
  int32_t *ids; // [count], the caller's to free
  int64_t count, capacity;
} TokenIds;
void token_ids_push(TokenIds *list, int32_t id);
void token_ids_remove(TokenIds *list, int64_t at); // ids[at], which is there

typedef struct Encoder Encoder;
Encoder *encoder_open(const Tokenizer *tokenizer);
void encoder_close(Encoder *encoder); // NULL is fine
// Appends the ids of text[bytes], which need not be UTF-8, as the Python package tokenizers does
// with add_special_tokens=False: added tokens inside the text are found; BOS and EOS are the
// caller's. continues: the text continues the piece before, so nothing is put in front of it.
// An error: the regular expression ran into PCRE2's limits.
int encoder_append(Encoder *encoder, const char *text, size_t bytes, bool continues, TokenIds *ids,
                   Error *err);

// Text between two special tokens that stand in a larger text on purpose.
typedef struct Between {
  const char *text; // [bytes]
  size_t bytes;
  // The tokens on either side; with rstrip and lstrip they take white space of this text. NO_TOKEN:
  // the larger text begins or ends here, or another piece of this one follows.
  int32_t before, behind;
  bool continues; // the text continues the piece before
} Between;
// Appends its ids, as tokenizers does with encode_special_tokens=True: special tokens in it are
// text; other added tokens are found.
int encoder_append_between(Encoder *encoder, const Between *between, TokenIds *ids, Error *err);

// ---- Decoding

typedef struct Decoder Decoder;
Decoder *decoder_open(const Tokenizer *tokenizer);
void decoder_close(Decoder *decoder); // NULL is fine
// The text that this id completes, as the Python package's decode has it with
// skip_special_tokens=True: whole UTF-8 characters; the bytes of one that is not whole yet wait.
// Returns how many bytes; *text is valid until the next call. Ids out of range are no text.
size_t decoder_next(Decoder *decoder, int32_t id, const char **text);
// The text that still waits; bytes that are no whole character come as they are. Starts a new text.
size_t decoder_end(Decoder *decoder, const char **text);

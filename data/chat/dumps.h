// JSON as templates write it: Python's json.dumps(json.loads(text), ensure_ascii=False).
#pragma once
#include "data/chat/messages.h"

// Appends a string with its quotes.
void dumps_string(Text *out, Span string);
// Appends a value. The JSON, which must be valid, is spoilt; half of a surrogate pair becomes
// U+FFFD. false: an object has a key twice.
bool dumps_json(Text *out, char *json, size_t bytes);
// Appends {"name": "...", "parameters": ...} of tool calls, a list of one {"function": {"name":
// "...", "arguments": ...}}, as Llama 3.1's template does: the name is not escaped. Spoils the
// JSON. NULL, or what is wrong with them.
const char *dumps_call(Text *out, char *calls, size_t bytes);

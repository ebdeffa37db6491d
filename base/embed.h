// A file of the tree inside the executable. The Makefile names it as a prerequisite of the object.
#pragma once

// Declares `const char name[]`: the file's bytes and a NUL. path: from the root of the tree.
#define EMBED(name, path)                                                                          \
  __asm__(".pushsection .rodata\n.globl " #name "\n" #name ":\n.incbin \"" path                    \
          "\"\n.byte 0\n.popsection\n");                                                           \
  extern const char name[]

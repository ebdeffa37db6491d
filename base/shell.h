// Commands that a program prints, to be pasted into a shell.
#pragma once

// A word as the shell reads it back, in fresh memory: itself where nothing in it is special to a
// shell, else in single quotes.
char *shell_word(const char *text);

// SPDX-License-Identifier: Apache-2.0

// A program, because precompiled headers are shared only by targets that are compiled with the same flags.
int main() {}

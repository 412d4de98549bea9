// SPDX-License-Identifier: Apache-2.0

// Main program of odr_check, which is linked and never run: linking it with -Wodr finds violations of the One
// Definition Rule between the libraries (HeadwayOdrCheck.cmake).
int main() { return 0; }

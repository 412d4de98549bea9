// SPDX-License-Identifier: Apache-2.0

// Main program of odr_check, which is linked and never run; see HeadwayOdrCheck.cmake.
int main() { return 0; }

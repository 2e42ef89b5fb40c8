// Marks what libafd.so exports: everything else in the library is hidden.
#pragma once

// A macro, since an attribute has to stand inside the declaration.
#define AFD_EXPORT __attribute__((visibility("default")))

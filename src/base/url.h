/* SPDX-License-Identifier: Apache-2.0 */
/* url.h - parameters in the query part of a store's URL. */
#ifndef ONCE_BASE_URL_H
#define ONCE_BASE_URL_H

#include <once/once.h>

/* Percent-decodes value[0..length) to out[0..size), with a NUL. 0 if it does
 * not fit, is badly encoded or holds a NUL. */
ONCE_CHECK int once__url_decode(const char *value, size_t length, char *out,
                                size_t size);

/* "USER[:PASSWORD]@" in front of `*at`, of which `authority` bytes may belong to
 * it; percent-decoded, and `*at` stands behind it then. Not there: nothing is
 * written. 0: too long or badly encoded. */
ONCE_CHECK int once__url_user(const char **at, size_t authority, char *user,
                              size_t user_size, char *password,
                              size_t password_size);

enum { ONCE__URL_PORT = 8 };

/* "HOST[:PORT]" or "[ADDRESS][:PORT]" in from[0..size). NULL, or what is
 * wrong. */
ONCE_CHECK const char *once__url_place(const char *from, size_t size,
                                       const char *usual_port, char *host,
                                       size_t host_size,
                                       char port[ONCE__URL_PORT]);

/*
 * Takes "param=value" out of the part of `url` after its "?", in place, and
 * writes the value, percent-decoded and with its NUL, to out[0..size). Returns
 * 1, or 0 if it is not there (`out` is then as it was), or ONCE_EURL: it is
 * there twice, too long, or badly encoded. The text names the parameter, never
 * the value.
 */
ONCE_CHECK int once__url_take(char *url, const char *param, char *out,
                              size_t size, once_error *err);

/* The same for a whole number from `least` to `most`. */
ONCE_CHECK int once__url_take_number(char *url, const char *param,
                                     uint64_t least, uint64_t most,
                                     uint64_t *out, once_error *err);

/* The same for "param=PATH": writes the first line of that file, which holds a
 * password. ONCE_EOPEN if it cannot be read. */
ONCE_CHECK int once__url_take_secret(char *url, const char *param, char *out,
                                     size_t size, once_error *err);

/*
 * The last call: cuts `url` off before its "?". ONCE_EURL if a parameter is
 * left that the store has not taken; the text shows its name if that cannot be
 * part of a password, and `known`, the names there are. `store` is for the
 * text.
 */
ONCE_CHECK int once__url_end(const char *store, char *url, const char *known,
                             once_error *err);

#endif /* ONCE_BASE_URL_H */

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * statement_mysql.c - the operator's statements, with the values of a message.
 *
 * Each statement is prepared, and the values travel beside it in the binary
 * protocol: no byte of a message enters a text of SQL. The text is read here only
 * to find its parameters and where a statement ends, which it does as the server
 * does: strings, names in backquotes, comments, and comments that are executed. A
 * text that the server reads in another way has another number of parameters, and
 * is refused.
 */
#include "programs/once/messages/statement.h"

#include <ctype.h>
#include <string.h>

#include "messages/tables/query_mysql.h"

enum { VALUES = 4, PARAMETERS_MAX = 64 };

/* One statement of the text, with ? for each parameter. */
struct statement {
    struct once__my_text text;
    uint8_t value[PARAMETERS_MAX]; /* which of the four: 1 to 4 */
    size_t count;
    int has_words; /* 0: white space and comments only */
};

/* ---- Reading the text ---------------------------------------------------- */

/* In a string a backslash escapes what follows it; in a name it means itself. A
 * quote that is doubled ends one and begins another, which is the same. */
static size_t size_of_quoted(const char *at)
{
    const char quote[] = {*at, *at == '`' ? '\0' : '\\', '\0'};
    size_t n = 1;

    for (;;) {
        n += strcspn(at + n, quote);
        if (at[n] == '\0')
            return n;
        if (at[n] == *at)
            return n + 1;
        n += at[n + 1] == '\0' ? 1 : 2;
    }
}

/* 0: no comment begins here. Of one that is executed only the beginning. */
static size_t size_of_comment(const char *at)
{
    const char *end;

    if (*at == '#' || (strncmp(at, "--", 2) == 0 &&
                       (at[2] == '\0' || isspace((unsigned char)at[2]) ||
                        iscntrl((unsigned char)at[2]))))
        return strcspn(at, "\n");
    if (strncmp(at, "/*", 2) != 0)
        return 0;
    if (at[2] == '!')
        return 3;
    if (strncmp(at, "/*M!", 4) == 0)
        return 4;
    end = strstr(at + 2, "*/");
    return end == NULL ? strlen(at) : (size_t)(end + 2 - at);
}

static int is_of_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' ||
           (unsigned char)c >= 0x80;
}

static size_t size_of_word(const char *at)
{
    size_t n = 0;

    while (is_of_word(at[n]))
        n++;
    return n;
}

/* 1 to 4, or 0: it is no parameter. */
static int parameter_at(const char *at)
{
    if ((*at != '$' && *at != '?') || at[1] < '1' || at[1] > '0' + VALUES ||
        is_of_word(at[2]))
        return 0;
    return at[1] - '0';
}

/* Copies one part of the statement; how long it was, 0: it is a parameter that
 * there is not, or one too many. */
static size_t take_part(struct statement *s, const char *at)
{
    size_t n = size_of_comment(at);
    int parameter = parameter_at(at);

    if (parameter > 0) {
        if (s->count == PARAMETERS_MAX)
            return 0;
        s->value[s->count++] = (uint8_t)parameter;
        once__my_put(&s->text, "?");
        s->has_words = 1;
        return 2;
    }
    if (*at == '?') /* the server would count it, and take the next value */
        return 0;
    if (n == 0) {
        n = strchr("'\"`", *at) != NULL ? size_of_quoted(at) : size_of_word(at);
        n = n == 0 ? 1 : n;
        s->has_words |= !isspace((unsigned char)*at);
    }
    once__my_put_part(&s->text, at, n);
    return n;
}

/* The next statement; where it ends in the text, or NULL: its parameters cannot be
 * used. */
static const char *take_statement(struct statement *s, const char *at)
{
    size_t n;

    once__my_text_reset(&s->text);
    s->count = 0;
    s->has_words = 0;
    for (; *at != '\0' && *at != ';'; at += n) {
        n = take_part(s, at);
        if (n == 0)
            return NULL;
    }
    return at + (*at == ';');
}

/* ---- Executing it -------------------------------------------------------- */

static void bind(MYSQL_BIND *to, int value, const once_message *m)
{
    const char *const texts[VALUES] = {m->id, m->body.data, m->key, m->type};
    const char *data = texts[value - 1];

    to->buffer_type = value == 2 ? MYSQL_TYPE_BLOB : MYSQL_TYPE_STRING;
    if (data == NULL && value != 2)
        to->buffer_type = MYSQL_TYPE_NULL;
    to->buffer = (void *)(uintptr_t)(data == NULL ? "" : data);
    to->buffer_length = value == 2     ? m->body.size
                        : data == NULL ? 0
                                       : strlen(data);
}

/* The rows of all answers are read, since some errors come in their place. */
static int read_answers(MYSQL_STMT *q)
{
    int more = 0;

    while (more == 0) {
        if (mysql_stmt_field_count(q) > 0 && mysql_stmt_store_result(q) != 0)
            return 0;
        (void)mysql_stmt_free_result(q);
        more = mysql_stmt_next_result(q);
    }
    return more < 0;
}

static void refuse_parameters(const struct cli *c)
{
    cli_say(c, 0,
            "the statement: its parameters are $1 to $4 or ?1 to ?4, up to %d "
            "of them, and none in a comment that only some versions execute",
            PARAMETERS_MAX);
}

static int execute(const struct cli *c, const struct statement *s, MYSQL *conn,
                   const once_message *m)
{
    MYSQL_STMT *q = mysql_stmt_init(conn);
    MYSQL_BIND binds[PARAMETERS_MAX];
    unsigned number = 0;
    size_t i;

    memset(binds, 0, sizeof(binds));
    for (i = 0; i < s->count; i++)
        bind(&binds[i], s->value[i], m);
    if (s->text.failed || q == NULL)
        return cli_say(c, 0, "the statement: out of memory"), 0;
    if (mysql_stmt_prepare(q, s->text.at, s->text.size) != 0) {
        number = mysql_stmt_errno(q);
    } else if (mysql_stmt_param_count(q) != s->count) {
        refuse_parameters(c);
    } else if (mysql_stmt_bind_param(q, binds) == 0 &&
               mysql_stmt_execute(q) == 0 && read_answers(q)) {
        (void)mysql_stmt_close(q);
        return 1;
    } else {
        number = mysql_stmt_errno(q);
    }
    if (number != 0)
        cli_say(c, 0, "the statement has failed: error %u", number);
    (void)mysql_stmt_close(q);
    conn->net.last_errno = number; /* the end has cleared it: the relay keeps it
                                    * with the message */
    return 0;
}

int cli_statement_mysql(const struct cli *c, const char *text, MYSQL *conn,
                        const once_message *m)
{
    struct statement s = {.count = 0};
    int done = 1;

    while (done && *text != '\0') {
        text = take_statement(&s, text);
        if (text == NULL) {
            refuse_parameters(c);
            done = 0;
            break;
        }
        if (s.has_words)
            done = execute(c, &s, conn, m);
    }
    once__my_text_clear(&s.text);
    return done ? ONCE_OK : ONCE_AGAIN;
}

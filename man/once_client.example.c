/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include <once/client.h>

int main(void)
{
    once_client_request request = ONCE_CLIENT_REQUEST_INIT;
    once_client_result result = ONCE_CLIENT_RESULT_INIT;
    once_error err = {0, ""};
    once_client *c = NULL;
    int outcome;

    if (once_client_open("orders.db", NULL, &err, &c) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 3;
    }
    request.order.data = "42";
    request.order.size = 2;
    request.method = "POST";
    request.url = "http://127.0.0.1:8080/charge";
    request.body.data = "{}";
    request.body.size = 2;
    outcome = once_client_send(c, &request, &result, &err);
    printf("%s\n", outcome < 0 ? err.text : once_client_text(result.reason));
    once_client_result_clear(&result);
    once_client_close(c);
    return outcome == ONCE_CLIENT_DONE ? 0 : 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* librabbitmq.h - the headers of librabbitmq, where its version has them: since
 * 0.12 (Debian 13) the old names say in a warning that they are old. */
#ifndef ONCE_MESSAGES_BROKER_LIBRABBITMQ_H
#define ONCE_MESSAGES_BROKER_LIBRABBITMQ_H

#if __has_include(<rabbitmq-c/amqp.h>)
#include <rabbitmq-c/amqp.h>
#include <rabbitmq-c/framing.h>
#include <rabbitmq-c/ssl_socket.h>
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp.h>
#include <amqp_framing.h>
#include <amqp_ssl_socket.h>
#include <amqp_tcp_socket.h>
#endif

#endif /* ONCE_MESSAGES_BROKER_LIBRABBITMQ_H */

/* SPDX-License-Identifier: Apache-2.0 */

/* Point-to-point channel: one sender, one receiver, and a ring of DEPTH slots that the consumed count protects.
 *
 * Idea: the sender has at most DEPTH messages of which it does not know that they are consumed. Messages land at any
 * time and in any order. The receiver copies them out in order. After each copy it sends back the number of messages
 * that it has consumed. Counts arrive at any time and in any order too, so an old one may arrive after a newer one.
 * The sender believes the largest count that it has seen.
 *
 * Example: DEPTH 2. The sender posts 0 and 1 and stops. The receiver copies both out and sends counts 1 and 2. Count 2
 * arrives first: the sender may post 2 and 3. Count 1 arrives late and changes nothing. If counts travelled modulo 4
 * and each were taken for an advance, the late 1 would mean 5, and the sender would overwrite a slot.
 *
 * Invariants (checked): no message lands in a slot whose content was not copied out; a copy finds its own message;
 * nobody waits for ever. A late count may make the sender wait, but never lets it post too early.
 * Complexity: states grow exponentially with the messages in flight; test_models.py searches DEPTH 1 to 4 completely.
 *
 * test_models.py sets the macros:
 *
 *   DEPTH, MESSAGES            slots of the ring, messages sent (at most 15)
 *   COUNT_BEFORE_COPY          mutant: the receiver counts a message when it lands, before the copy
 *   COUNT_MODULO=M             counts travel modulo M, and the sender takes each one for an advance, even a stale one
 *   ONLY_POSSIBLE_ADVANCE      with COUNT_MODULO: an advance beyond the posted messages is not believed
 *   BELIEVE_LAST_COUNT         mutant: the sender takes the last count to arrive, even if it is lower (waits for ever)
 */

#define BIT(message)       (1 << (message))
#define HAS(set, message)  (((set) >> (message)) & 1)
#define EMPTY              255

byte posted, believed;            /* sender: messages posted, messages believed consumed */
byte copied, reported;            /* receiver: messages copied out; counts 1 .. reported were sent back */
short landed, counts_arrived;     /* sets: messages landed; counts (count c is bit c-1) that reached the sender */
byte occupant[DEPTH] = EMPTY;     /* the message whose data lies in the slot */

#define IN_FLIGHT(message)      ((message) < posted && !HAS(landed, message))
#define COUNT_IN_FLIGHT(count)  ((count) <= reported && !HAS(counts_arrived, (count) - 1))

#ifdef COUNT_BEFORE_COPY
#define MAY_REPORT  HAS(landed, reported)
#else
#define MAY_REPORT  (reported < copied)
#endif

inline land(message) {
    assert(occupant[(message) % DEPTH] == EMPTY || occupant[(message) % DEPTH] < copied); /* no overwrite */
    occupant[(message) % DEPTH] = message;
    landed = landed | BIT(message)
}

inline believe(count) {
    counts_arrived = counts_arrived | BIT((count) - 1);
#ifdef COUNT_MODULO
    advance = ((count) + MESSAGES * COUNT_MODULO - believed) % COUNT_MODULO;
#ifdef ONLY_POSSIBLE_ADVANCE
    if
    :: believed + advance <= posted -> believed = believed + advance
    :: else
    fi;
#else
    believed = believed + advance;
#endif
    advance = 0
#else
    if
#ifdef BELIEVE_LAST_COUNT
    :: true -> believed = count
#else
    :: (count) > believed -> believed = count
#endif
    :: else
    fi
#endif
}

#define MAY_POST  (posted < believed + DEPTH)

active proctype sender() {
    do
    :: d_step { posted < MESSAGES && MAY_POST -> posted++ }
    :: posted == MESSAGES -> break
    od
}

active proctype receiver() {
    do
    :: d_step { copied < MESSAGES && HAS(landed, copied) -> assert(occupant[copied % DEPTH] == copied); copied++ }
    :: d_step { reported < MESSAGES && MAY_REPORT -> reported++ }
    :: copied == MESSAGES && reported == MESSAGES -> break
    od
}

#define LAND(message)   :: d_step { IN_FLIGHT(message) -> land(message) }
#define BELIEVE(count)  :: d_step { COUNT_IN_FLIGHT((count) + 1) -> believe((count) + 1) }
#define EVERY(step) \
    step(0) step(1) step(2) step(3) step(4) step(5) step(6) step(7) step(8) step(9) step(10) step(11) step(12) step(13) \
    step(14)

active proctype network() {
    byte advance = 0;
end:
    do
    EVERY(LAND)
    EVERY(BELIEVE)
    od
}

// The algorithms in a sentence each, and limits to begin with.

export const algorithms = {
  token_bucket: {
    name: 'Token bucket',
    says: 'Tokens drip in one by one; what was saved up may be spent at once.',
    limit: '2/s burst 10',
    per: (count, period) => ({ limit: `${count}/${period}` }),
  },
  token_bucket_interval: {
    name: 'Token bucket, interval refill',
    says: 'Tokens arrive by the handful, a whole refill at a time.',
    limit: '5 every 3s burst 10',
    per: (count, period) => ({ limit: `${count} every ${period}` }),
  },
  leaky_bucket: {
    name: 'Leaky bucket',
    says: 'Requests queue up and leave at an even pace; each is told how long to wait.',
    limit: '2/s queue 9',
    per: (count, period) => ({ limit: `${count}/${period} queue ${count - 1}` }),
  },
  fixed_window: {
    name: 'Fixed window',
    says: 'A count that starts anew with every window of the clock.',
    limit: '10/10s',
    per: (count, period) => ({ limit: `${count}/${period}` }),
    windows: ['epoch', 'first', 'spread'],
  },
  sliding_window_log: {
    name: 'Sliding window log',
    says: 'Remembers each request for exactly one window.',
    limit: '10/10s',
    per: (count, period) => ({ limit: `${count}/${period}` }),
  },
  sliding_window_counter: {
    name: 'Sliding window counter',
    says: 'Two counts, the older one fading: nearly the log, for the price of a counter.',
    limit: '10/10s',
    per: (count, period) => ({ limit: `${count}/${period}` }),
    windows: ['epoch', 'first'],
  },
};

export const named = Object.entries(algorithms).map(([value, { name }]) => [value, name]);

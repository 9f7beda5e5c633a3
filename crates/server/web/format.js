// Numbers and times as people read them, in the viewer's language and zone.

const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const hundredth = new Intl.NumberFormat(undefined, { maximumFractionDigits: 2 });
const tenth = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat(undefined, { notation: 'compact', maximumFractionDigits: 1 });
const clockForm = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const minuteForm = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit' });
const dayForm = new Intl.DateTimeFormat(undefined, { day: 'numeric', month: 'short' });
const thisYear = new Intl.DateTimeFormat(undefined, {
  month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit', second: '2-digit',
});
const otherYear = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' });

export const none = '–';

/** 12,345 */
export const number = (value) => (value === null || value === undefined ? none : whole.format(value));

/** 12,345.67: what is left, rounded down. */
export const left = (value) => (value === null || value === undefined ? none : hundredth.format(Math.floor(value * 100) / 100));

/** 12,345 while that is short, 1.2M beyond. */
export const compact = (value) => (Math.abs(value) < 100_000 ? number(value) : short.format(value));

/** 3.4% */
export const share = (part, all) => (all > 0 ? `${tenth.format((100 * part) / all)}%` : none);

/** 14:03:07 */
export const clock = (ms) => clockForm.format(ms);

/** 14:03 */
export const minute = (ms) => minuteForm.format(ms);

/** 3 Nov */
export const day = (ms) => dayForm.format(ms);

/** 16 Nov, 14:03:07, as an element that also has the exact instant. */
export function stamp(text) {
  const time = document.createElement('time');
  const at = new Date(text);
  time.dateTime = at.toISOString();
  time.title = at.toISOString();
  time.textContent = (at.getFullYear() === new Date().getFullYear() ? thisYear : otherYear).format(at);
  return time;
}

/** 340 ms, 1.2 s, 2 min 5 s, 3 h 10 min, 2 d 4 h. `null` is a wait that does not end. */
export function wait(ms) {
  if (ms === null || ms === undefined) return 'never';
  if (ms === 0) return '0 s';
  if (ms < 1000) return `${whole.format(Math.ceil(ms))} ms`;
  if (ms < 60_000) return `${tenth.format(Math.ceil(ms / 100) / 10)} s`;
  const seconds = Math.ceil(ms / 1000);
  for (const [size, name, rest, part] of [[86_400, 'd', 3600, 'h'], [3600, 'h', 60, 'min'], [60, 'min', 1, 's']]) {
    if (seconds < size) continue;
    const more = Math.floor((seconds % size) / rest);
    return `${Math.floor(seconds / size)} ${name}${more > 0 ? ` ${more} ${part}` : ''}`;
  }
  return `${seconds} s`;
}

/** 3 µs, 1.4 ms. */
export function micros(us) {
  if (us === null || us === undefined) return none;
  if (us < 1000) return `${tenth.format(us)} µs`;
  return us < 1_000_000 ? `${tenth.format(us / 1000)} ms` : `${tenth.format(us / 1_000_000)} s`;
}

/** 3.4 MB */
export function bytes(count) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let [value, unit] = [count, 0];
  while (value >= 1000 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${tenth.format(value)} ${units[unit]}`;
}

/** One of us, many of us. */
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

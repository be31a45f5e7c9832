// A real PDS and a did:plc directory in memory, on the loopback only, for `make test-pds`.
// Arguments: the folder with node_modules, the data folder, the ports of the PDS and of the directory. Says "ready" on stdout when both listen. Commands on
// stdin, one JSON object a line, answered by one line each: {"rotate": did} gives an account a new signing key.
const { createRequire } = require('module')
const net = require('net')
const fs = require('fs')
const readline = require('readline')

const [modules, data, pdsPort, plcPort] = process.argv.slice(2)
const load = createRequire(modules + '/package.json')

// Both servers bind 0.0.0.0 by default.
const listen = net.Server.prototype.listen
net.Server.prototype.listen = function (...args) {
  if (typeof args[0] === 'number') return listen.call(this, { port: args[0], host: '127.0.0.1' }, ...args.slice(typeof args[1] === 'string' ? 2 : 1))
  if (args[0] && typeof args[0] === 'object' && args[0].port !== undefined) args[0].host = '127.0.0.1'
  return listen.apply(this, args)
}

const plc = load('@did-plc/server')
const { PDS, readEnv, envToCfg, envToSecrets } = load('@atproto/pds')
const { Secp256k1Keypair } = load('@atproto/crypto')

async function rotate(ctx, did) {
  const key = await Secp256k1Keypair.create({ exportable: true })
  await ctx.plcClient.updateAtprotoKey(did, ctx.plcRotationKey, key.did())
  const { keyLocation } = await ctx.actorStore.getLocation(did)
  fs.writeFileSync(keyLocation, Buffer.from(await key.export()))
  await ctx.sequencer.sequenceIdentityEvt(did)
  return { did, key: key.did() }
}

async function main() {
  await plc.PlcServer.create({ db: plc.Database.mock(), port: Number(plcPort) }).start()
  const rotationKey = await Secp256k1Keypair.create({ exportable: true })
  Object.assign(process.env, {
    PDS_DEV_MODE: 'true',
    PDS_HOSTNAME: 'localhost',
    PDS_PORT: pdsPort,
    PDS_DATA_DIRECTORY: data,
    PDS_BLOBSTORE_DISK_LOCATION: data + '/blobs',
    PDS_DID_PLC_URL: 'http://127.0.0.1:' + plcPort,
    PDS_PLC_ROTATION_KEY_K256_PRIVATE_KEY_HEX: Buffer.from(await rotationKey.export()).toString('hex'),
    PDS_ADMIN_PASSWORD: 'admin-pass',
    PDS_JWT_SECRET: 'jwt-secret',
    PDS_SERVICE_HANDLE_DOMAINS: '.test',
    PDS_INVITE_REQUIRED: 'false',
    PDS_DISABLE_SSRF_PROTECTION: 'true',
    PDS_BSKY_APP_VIEW_URL: 'http://127.0.0.1:1',
    PDS_BSKY_APP_VIEW_DID: 'did:example:invalid',
    PDS_RATE_LIMITS_ENABLED: 'false',
    PDS_CRAWLERS: '',
    LOG_ENABLED: 'false',
    PDS_REPO_BACKFILL_LIMIT_MS: '86400000',
    PDS_MAX_SUBSCRIPTION_BUFFER: '5000',
  })
  const env = readEnv()
  const pds = await PDS.create(envToCfg(env), envToSecrets(env))
  await pds.start()
  process.stdout.write('ready\n')
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let answer
    try {
      answer = await rotate(pds.ctx, JSON.parse(line).rotate)
    } catch (error) {
      answer = { error: String(error) }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  process.exit(0) // whoever started us is gone
}

main().catch((error) => {
  process.stderr.write(String(error && error.stack) + '\n')
  process.exit(1)
})

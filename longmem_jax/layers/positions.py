"""TEMPORARY"""
import numpy as np, jax, jax.numpy as jnp
def clamped(n, clamp):
    d=np.arange(n); return np.minimum(d,clamp) if clamp else d
def sinusoids(dist,width):
    f=10000.0**(-np.arange(0,width,2)/width); a=np.asarray(dist)[:,None]*f
    return np.concatenate([np.sin(a),np.cos(a)],-1).astype(np.float32)
def rotary(x,start):
    n,d=x.shape[2],x.shape[3]
    pos=(jnp.asarray(start,jnp.int32).reshape(-1,1)+jnp.arange(n,dtype=jnp.int32)[None]).astype(jnp.float32)
    f=jnp.asarray(10000.0**(-np.arange(0,d,2)/d),jnp.float32)
    a=pos[:,:,None]*f[None,None]
    c,s=jnp.cos(a)[:,None].astype(x.dtype),jnp.sin(a)[:,None].astype(x.dtype)
    x1,x2=x[...,:d//2],x[...,d//2:]
    return jnp.concatenate([x1*c-x2*s,x1*s+x2*c],-1)
